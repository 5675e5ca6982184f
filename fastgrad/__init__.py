"""Compute the gradients of a loss with respect to a model's parameters, by record or for a weighted batch.

Models and losses are handed in. Nothing here knows of clients, privacy or files; needed are torch, numpy, and
numba with its LLVM. `forms.py` chooses how gradients of single records are computed, `record_gradients.py`
clips and sums them, and `one_record.py` says which models couple none.

A program is a model's pass forward and back as a straight list of calls on buffers that stay in cache.
`traced.py` finds the steps of a model, `lowering.py` reads them as layers of `lowered.py`, `fitting.py` says
whether a program is for this machine, and `program.py` makes the calls, layer by layer: `affine.py`,
`group_norm.py`, `pooling.py`, `join.py`, `dropout.py`, `embedding_lstm.py`. Loops are in `kernels.py`, or
beside the one layer that has them. `products.py` multiplies matrices by the tiles of `tiles.py`, and
`vectors.py` writes machine code.
"""

ENDS = (KeyboardInterrupt, SystemExit)
"""What ends a process, and is due to no record."""
