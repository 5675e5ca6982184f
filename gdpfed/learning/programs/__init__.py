"""Programs: a model's pass forward and back as a straight list of calls on buffers that stay in cache.

`lowering.py` reads a model's layers, `program.py` makes the calls of them, `kernels.py` holds the loops.
"""
