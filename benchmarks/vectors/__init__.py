"""Test vectors in JSON for other programs: plans, noise, sums, scores and refusals of this project.

    python -m benchmarks.vectors                 # writes all files of vectors/ anew
    python -m benchmarks.vectors --check         # says which of them would change, and writes nothing

Every file follows from this code alone: nothing in it is random, and numbers have nine digits, so that
another machine writes the same bytes. docs/vectors.md says what the entries are and how close to come.
"""
