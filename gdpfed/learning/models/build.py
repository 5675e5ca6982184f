"""Builds models by name for given data shapes; random keys (seeds) determine which units dropout drops."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from inspect import Parameter, signature
from threading import RLock
from types import FunctionType
from typing import Any, get_type_hints

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fastgrad.modules import DrawnDropout
from gdpfed.errors import LearningError, kind_and_words, words_of
from gdpfed.learning.models.vector import dimension_of, leave_out, trainable
from gdpfed.learning.weights_file import WeightsFile
from gdpfed.registry import Registry

KEYS = 2**63
"""A key is a whole number from 0 to below this number."""

_DRAWING = RLock()


@contextmanager
def draws_by(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator for a ``with`` block; afterwards restore its earlier state.

    All threads of a process share that generator, so only one thread at a time runs the block.
    """
    with _DRAWING, torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also store a call, with its stack, for each kind of device not in use yet.
        torch.default_generator.manual_seed(seed)
        yield


def with_drawn_dropout(model: nn.Module) -> nn.Module:
    """Replace every active `nn.Dropout` of a model by `DrawnDropout`, where a key decides what is dropped."""
    number = 0
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout and child.p > 0:
                setattr(parent, name, DrawnDropout(child.p, number))
                number += 1
    return model


def draw_keys(num_steps: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw a random key for the dropout of each local step, shape (steps,)."""
    return rng.integers(KEYS, size=num_steps, dtype=np.int64)


class DropoutKeys:
    """Sets the key by which all dropout layers of a model decide what they drop.

    `names`: the names of the keys among the model's buffers.
    """

    def __init__(self, model: nn.Module) -> None:
        layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, DrawnDropout)}
        self._layers = tuple(layers.values())
        self.names = tuple(f"{name}.key" for name in layers)
        for layer in self._layers:
            layer.by_key = True

    def __bool__(self) -> bool:
        return bool(self.names)

    def set(self, key: int) -> None:
        """Set the key by which dropout layers decide what they drop in the next step."""
        for layer in self._layers:
            layer.key.fill_(key)


# A builder takes (input_shape, num_classes) and options: keyword-only numbers or texts, or one keyword-only
# argument `options`, a dataclass of them. It may also have the argument `given`.
Builder = Callable[..., nn.Module]
# Pairs in place of a mapping, since a task must be hashable.
Options = tuple[tuple[str, int | float | str], ...]


@dataclass(frozen=True)
class Given:
    """What a model may need besides its options and the data's shape: a weights file and a vocabulary size.

    `vocabulary`: the number of tokens, if inputs are tokens and classes are not. `weights`: initial weights.
    """

    vocabulary: int | None = None
    weights: WeightsFile | None = None


NOTHING_GIVEN = Given()
MOST_LAYERS = 200
"""A node builds a model layer by layer to learn its size; a server could name a billion."""

MODELS: Registry[Builder] = Registry("model", "gdpfed.models", error=LearningError)


def build_model(
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    seed: int,
    input_dtype: npt.DTypeLike = np.float32,
    options: Options = (),
    given: Given = NOTHING_GIVEN,
    outputs: tuple[int, ...] | None = None,
) -> nn.Module:
    """Build a model whose initial parameters depend only on ``seed`` and given weights.

    `outputs`: the shape that its outputs for a record must have; None for any shape. It is not checked for a
    model that scores every position. Raises LearningError: the model or an option is unknown, the model
    cannot take such examples, its outputs have another shape, training changes its buffers, a parameter is
    complex, or none is trainable.
    """
    build = _builder(name, options, given)
    example = torch.from_numpy(np.zeros((2, *input_shape), dtype=input_dtype))
    with draws_by(seed):
        try:
            model = with_drawn_dropout(build(input_shape, num_classes))
            with torch.no_grad():
                found = tuple(model(example).shape[1:])
        except LearningError:
            raise
        except Exception as error:  # A package's model may raise anything.
            raise LearningError(
                f"dataset.model={name} cannot take examples of shape {input_shape} and type "
                f"{np.dtype(input_dtype)}{_in_words(options)}: {_cause(error)}"
            ) from None
        refuse_changing_buffers(model, example)
    if outputs is not None and not scores_every_position(model) and found != outputs:
        at_places = ", such as fcn for a class at every pixel" if len(outputs) > 1 else ""
        raise LearningError(
            f"dataset.model={name} gives outputs of shape {found} for a record, and these labels need "
            f"{outputs}: choose another model{at_places}"
        )
    if of_complex := [parameter for parameter, each in trainable(model).items() if each.is_complex()]:
        raise LearningError(
            f"dataset.model={name} has complex parameters, {', '.join(of_complex)}, and updates are real "
            "numbers: give it one parameter for the real part and one for the imaginary part"
        )
    if not dimension_of(model):
        raise LearningError(
            f"dataset.model={name} has no trainable parameter: set requires_grad=True for those to train"
        )
    return model


def said(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return a model's outputs for n records; if it has outputs at every position, only those at the last.

    A model that scores every position of a text computes the last output from the whole text.
    """
    outputs: torch.Tensor = model(x)
    return outputs[:, -1] if scores_every_position(model) else outputs


def scores_every_position(model: nn.Module) -> bool:
    """Whether a model predicts at every position of a text: its attribute ``every_position``, or False."""
    return bool(getattr(model, "every_position", False))


def predicts_nothing(model: nn.Module) -> bool:
    """Whether a model makes no predictions (it only counts statistics), so that it is not tested."""
    return bool(getattr(model, "predicts_nothing", False))


def count_parameters(
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    options: Options = (),
    local: tuple[str, ...] = (),
    given: Given = NOTHING_GIVEN,
) -> int:
    """Return d, the number of parameters, without allocating them, however large the model is.

    `local`: patterns of names of parameters that theta leaves out. Raises LearningError: the model or an
    option is unknown, or the model cannot be built.
    """
    shapes = (name, input_shape, num_classes, options)
    if given.weights is not None or not isinstance(MODELS.get(name), FunctionType):
        return _counted(*shapes, local, given)
    # The options' text is part of the cache's key: 1 equals 1.0, which a model may refuse.
    return _known_count(MODELS.get(name), repr(options), *shapes, local, given)


def _counted(
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    options: Options,
    local: tuple[str, ...],
    given: Given,
) -> int:
    model = _without_memory(name, input_shape, num_classes, options, given)
    leave_out(model, local)
    return dimension_of(model)


@lru_cache(maxsize=64)
def _known_count(builder: Builder, words: str, *settings: Any) -> int:
    """Return the parameter count of a model with these settings, cached."""
    return _counted(*settings)


def count_numbers(
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    options: Options = (),
    given: Given = NOTHING_GIVEN,
) -> int:
    """Return how many numbers a model's weights file holds, including numbers that are not trained.

    Like :func:`count_parameters` it allocates no weights. Raises LearningError: as there.
    """
    model = _without_memory(name, input_shape, num_classes, options, given)
    return sum(each.numel() for each in model.state_dict().values())


def _without_memory(
    name: str, input_shape: tuple[int, ...], num_classes: int, options: Options, given: Given
) -> nn.Module:
    build = _builder(name, options, given)
    try:
        with torch.device("meta"), draws_by(0):
            model = with_drawn_dropout(build(input_shape, num_classes))
            dimension_of(model)  # A lazy layer has none before its first input.
            return model
    except LearningError:
        raise
    except Exception as error:
        raise LearningError(
            f"dataset.model={name} cannot be built for examples of shape {input_shape}{_in_words(options)}: "
            f"{_cause(error)}"
        ) from None


def _cause(error: Exception) -> str:
    """Return what a model says of its input; the kind of any other error stands before its text."""
    return words_of(error) if isinstance(error, ValueError | RuntimeError) else kind_and_words(error)


def check_model(name: str, options: Options) -> Builder:
    """Return the builder of a model, after checking the options for it.

    Raises LearningError: the model or an option is unknown, or a value has another type than the default.
    """
    builder = MODELS.get(name)
    keywords = _keywords(builder)
    if "options" in keywords:
        own = {field.name: field.default for field in fields(get_type_hints(builder)["options"])}
    else:
        own = {key: default for key, default in keywords.items() if key != "given"}
    for key, value in options:
        if key not in own:
            raise LearningError(
                f"dataset.model_options.{key}={value} is not an option of model '{name}': "
                f"it has {', '.join(own) or 'none'}"
            )
        if isinstance(own[key], str) or isinstance(value, str):
            if isinstance(own[key], str) != isinstance(value, str):
                wanted = "a word" if isinstance(own[key], str) else "a number"
                raise LearningError(f"dataset.model_options.{key}={value} must be {wanted}")
        elif value <= 0 or (isinstance(own[key], int) and not isinstance(value, int)):
            kind = "whole" if isinstance(own[key], int) else ""
            raise LearningError(f"dataset.model_options.{key}={value} must be a positive {kind} number")
    return builder


def _keywords(builder: Builder) -> dict[str, Any]:
    """Return the keyword-only parameters of a model's builder, with their defaults."""
    kept = signature(builder).parameters.items()
    return {key: each.default for key, each in kept if each.kind is Parameter.KEYWORD_ONLY}


def _builder(name: str, options: Options, given: Given) -> Builder:
    """Return a model's builder with its options, weights file and vocabulary size filled in.

    Raises LearningError: as in :func:`check_model`, or the model does not take a given value.
    """
    builder = check_model(name, options)
    keywords = _keywords(builder)
    told: dict[str, Any] = dict(options)
    if "options" in keywords:
        told = {"options": get_type_hints(builder)["options"](**told)}
    if "given" in keywords:
        told["given"] = given
    elif given.weights is not None:
        raise LearningError(f"dataset.weights has no meaning for dataset.model={name}: leave it out")
    elif given.vocabulary is not None:
        raise LearningError(
            f"dataset.model={name} has one vocabulary for inputs and classes, and dataset.vocabulary is for "
            "inputs alone: use dataset.model=transformer"
        )
    return partial(builder, **told)


def _in_words(options: Options) -> str:
    return "".join(f", {key}={value}" for key, value in options)


def refuse_changing_buffers(model: nn.Module, example: torch.Tensor) -> None:
    """Raise LearningError if using a model changes what it holds, such as BatchNorm's running statistics.

    Clipping and noise cover the gradients of trainable parameters, and no other change. Without it, another
    model is trained than the one that is evaluated. An embedding's `max_norm` changes parameters.

    `model`: any module; its buffers are restored afterwards. `example`: a small batch to run through it.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and (layer.max_norm is not None or layer.sparse):
            raise LearningError(
                f"the model's layer {name} has max_norm={layer.max_norm}, sparse={layer.sparse}: leave both "
                "out, since clipping and noise cover neither a change of weights in use nor sparse gradients"
            )
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    if not before:
        return
    was_training = model.training
    model.train()
    with torch.no_grad():
        model(example)
    model.train(was_training)
    changed = [name for name, b in model.named_buffers() if not torch.equal(b, before[name])]
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
    if changed:
        raise LearningError(
            f"the model's buffers {', '.join(changed)} change in training and are covered neither by "
            "clipping nor by noise: use a layer without running statistics, such as GroupNorm"
        )
