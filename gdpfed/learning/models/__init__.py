"""Builders of models by name, and the trainable parameters of a model as one flat vector.

A builder is a function ``(input_shape, num_classes, *, options...) -> torch.nn.Module``. Another package adds
one as an entry point of the group ``gdpfed.models``, which every process sees, or for one process with
:func:`register`.
"""

from gdpfed.learning.models.build import (
    MODELS,
    Builder,
    Given,
    Options,
    build_model,
    check_model,
    count_numbers,
    count_parameters,
    predicts_nothing,
    refuse_changing_buffers,
    said,
    scores_every_position,
)
from gdpfed.learning.models.networks import cnn2, cnn3, fcn, linear, lstm, mlp, ngram, resnet18, softmax
from gdpfed.learning.models.transformer import transformer
from gdpfed.learning.models.vector import (
    assign,
    dimension_of,
    fingerprint,
    flatten,
    leave_out,
    names_of,
    state_dict_of,
    trainable,
)

register = MODELS.register

register("cnn2", cnn2)
register("cnn3", cnn3)
register("fcn", fcn)
register("linear", linear)
register("lstm", lstm)
register("mlp", mlp)
register("ngram", ngram)
register("resnet18", resnet18)
register("softmax", softmax)
register("transformer", transformer)

__all__ = [
    "MODELS",
    "Builder",
    "Given",
    "Options",
    "assign",
    "build_model",
    "check_model",
    "count_numbers",
    "count_parameters",
    "dimension_of",
    "fingerprint",
    "flatten",
    "leave_out",
    "names_of",
    "predicts_nothing",
    "refuse_changing_buffers",
    "register",
    "said",
    "scores_every_position",
    "state_dict_of",
    "trainable",
]
