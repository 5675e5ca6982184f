"""Writes test vectors for other implementations: privacy plans, noise, secure sums, audits and ledgers.

    python -m benchmarks.vectors                 # writes all files of vectors/ anew
    python -m benchmarks.vectors --check         # says which of them would change, and writes nothing

Every file follows from this code alone: nothing in it is random, and numbers have nine digits, so that
another machine writes the same bytes. docs/vectors.md explains the entries, and how closely another program
must agree with them.
"""
