"""Gradients of a loss by the parameters of a model: of each record by itself, or of a weighted batch.

Models and losses are handed in. Nothing here knows of clients, privacy or files; needed are torch, numpy and
numba. `forms.py` chooses how gradients of single records are computed, `record_gradients.py` clips and sums
them.

A program is a model's pass forward and back as a straight list of calls on buffers that stay in cache.
`lowering.py` reads a model's layers as those of `lowered.py`, and `program.py` makes the calls of them,
layer by layer: `affine.py`, `group_norm.py`, `pooling.py`, `dropout.py`, `embedding_lstm.py`. Loops are in
`kernels.py`, or beside the one layer that has them.
"""
