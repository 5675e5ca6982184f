"""Programs: a model's pass forward and back as a straight list of calls on buffers that stay in cache.

`lowering.py` reads a model's layers as the stages of `stages.py`, and `program.py` makes the calls of them,
layer by layer: `weighted.py`, `norm.py`, `pooling.py`, `reading.py`. Loops are in `kernels.py`, in
`recurrence.py`, or beside the one layer that has them.
"""
