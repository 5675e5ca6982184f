"""Transformers, built from a configuration by Hugging Face's library, with low-rank adapters by peft.

A model is built of numbers alone: nothing is downloaded, and no file's code is run. Which architectures there
are is the table below. What is trained is, as a rule, a low-rank change of the attention's maps (LoRA, Hu et
al., arXiv:2106.09685) and a head, so that little is sent, clipped and noised.

None draws in training: dropout is 0, since noise and clipping regularise, and clients draw by keys.
"""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gdpfed.errors import LearningError, not_known
from gdpfed.installed import how_to_install
from gdpfed.learning.models.build import MOST_LAYERS, Given

ADAPTERS, ALL = "adapters", "all"
PADDING = 0
"""The token that fills up a text to its length, where texts are classified: nothing attends to it."""
MISSING = "dataset.{0} needs the packages transformers and peft, which are not installed: {1}"


@dataclass(frozen=True)
class Architecture:
    """How to build one architecture with Hugging Face's library: Python classes and names of their options.

    Attributes:
        config, model: classes of `transformers`.
        sizes: what the library calls a vocabulary, positions, width, layers, heads and inner width, in order.
        fixed: other values of the configuration.
        built_with: arguments of the model's class.
        adapted: the maps that adapters change.
        prefix: before the names in files that have a head as well.
        causal: whether a position sees none after it.
    """

    config: str
    model: str
    sizes: tuple[str, ...]
    fixed: Mapping[str, Any]
    built_with: Mapping[str, Any]
    adapted: tuple[str, ...]
    prefix: str
    causal: bool = False


ARCHITECTURES = {
    "gpt2": Architecture(
        "GPT2Config",
        "GPT2Model",
        ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner"),
        {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
        | {"bos_token_id": None, "eos_token_id": None},
        {},
        ("c_attn",),
        "transformer.",
        causal=True,
    ),
    "bert": Architecture(
        "BertConfig",
        "BertModel",
        (
            *("vocab_size", "max_position_embeddings", "hidden_size"),
            *("num_hidden_layers", "num_attention_heads", "intermediate_size"),
        ),
        {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": None},
        {"add_pooling_layer": False},
        ("query", "value"),
        "bert.",
    ),
    "distilbert": Architecture(
        "DistilBertConfig",
        "DistilBertModel",
        ("vocab_size", "max_position_embeddings", "dim", "n_layers", "n_heads", "hidden_dim"),
        {"dropout": 0.0, "attention_dropout": 0.0, "pad_token_id": None},
        {},
        ("q_lin", "v_lin"),
        "distilbert.",
    ),
}
IN_FILES_ALONE = r"attn\.(masked_)?bias$|position_ids$|token_type_ids$|^pooler\."
"""Names in published files for what a model here does not have: constant masks, and a head's first layer."""


@dataclass(frozen=True)
class EncoderSizes:
    """The sizes of a transformer; they must be those of the file of weights, if there is one.

    `inner`: width of the feed-forward layers; 0 for four times the width. `positions`: of the longest text;
    0 for as many as an example has tokens.
    """

    architecture: str = "gpt2"
    layers: int = 2
    heads: int = 2
    width: int = 64
    inner: int = 0
    positions: int = 0


@dataclass(frozen=True)
class TransformerOptions(EncoderSizes):
    """The options of ``dataset.model=transformer``: sizes, and what is trained (adapters or all parameters).

    `trained`: adapters, with the head, or all. `rank`, `alpha`: of the adapters: W x + alpha / rank B A x, A
    and B of that rank.
    """

    trained: str = ADAPTERS
    rank: int = 4
    alpha: float = 8.0


def transformer(
    input_shape: tuple[int, ...], num_classes: int, *, options: TransformerOptions, given: Given
) -> nn.Module:
    """A transformer that predicts the next token at every position, or the class of a text.

    Inputs are tokens, shape (B, L), int64. Without a vocabulary of the data, classes are tokens, and the
    scores are those of the token after each position, shape (B, L, classes): products with the embeddings,
    which are trained in both places, or in none. With one, a linear head scores the mean over all positions
    that hold no `PADDING`, shape (B, classes).
    """
    speaks = given.vocabulary is None
    encoder = build_encoder(options, given, input_shape, num_classes, setting="model=transformer")
    if speaks and not ARCHITECTURES[options.architecture].causal:
        raise ValueError(
            f"architecture={options.architecture} also reads the tokens that it should predict: use gpt2"
        )
    if options.trained not in (ADAPTERS, ALL):
        raise ValueError(not_known(f"trained={options.trained}", (ADAPTERS, ALL)))
    if options.trained == ADAPTERS:
        from peft import LoraConfig, inject_adapter_in_model

        encoder = encoder.requires_grad_(False)
        config = LoraConfig(
            r=options.rank,
            lora_alpha=options.alpha,
            lora_dropout=0.0,
            target_modules=[*ARCHITECTURES[options.architecture].adapted],
        )
        with warnings.catch_warnings():
            # GPT-2's maps are stored the other way round, which peft finds out.
            warnings.simplefilter("ignore", UserWarning)
            encoder = inject_adapter_in_model(config, encoder)
    return Speaker(encoder) if speaks else Classifier(encoder, options, num_classes)


def build_encoder(
    sizes: EncoderSizes, given: Given, input_shape: tuple[int, ...], num_classes: int, *, setting: str
) -> nn.Module:
    """Build a transformer without an output layer; its weights come from a file or are random.

    Raises:
        ValueError: sizes that do not fit each other, too many layers, or examples that are not texts.
        LearningError: the packages are missing, there is no such architecture, or the file is another one.
    """
    if sizes.architecture not in ARCHITECTURES:
        raise LearningError(not_known(f"architecture={sizes.architecture}", ARCHITECTURES))
    if len(input_shape) != 1:
        raise ValueError(f"an example of shape {input_shape} is not a text, which has one dimension")
    if sizes.layers > MOST_LAYERS:
        raise ValueError(f"use at most {MOST_LAYERS} layers")
    # Nothing is downloaded.
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import peft  # noqa: F401 - both belong to one extra
        import transformers
    except ImportError:
        raise LearningError(MISSING.format(setting, how_to_install("transformers"))) from None

    kind = ARCHITECTURES[sizes.architecture]
    positions = sizes.positions or input_shape[0]
    if positions < input_shape[0]:
        raise ValueError(
            f"positions={positions} are fewer than the {input_shape[0]} tokens of an example: use "
            f"{input_shape[0]} or more"
        )
    values = (given.vocabulary or num_classes, positions, sizes.width, sizes.layers, sizes.heads)
    numbers = dict(zip(kind.sizes, (*values, sizes.inner or 4 * sizes.width), strict=True))
    config = getattr(transformers, kind.config)(**numbers, **kind.fixed)
    # The other forms of attention choose by values of the mask, which torch.func cannot.
    config._attn_implementation = "eager"
    encoder: nn.Module = getattr(transformers, kind.model)(config, **kind.built_with)
    if given.weights is not None and not next(encoder.parameters()).is_meta:
        given.weights.fill(encoder, (kind.prefix, "transformer."), IN_FILES_ALONE)
    return encoder


class Speaker(nn.Module):
    """A transformer that predicts the next token at every position: (B, L) to (B, L, vocabulary)."""

    every_position = True

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.transformer = encoder

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores of the next token: products of hidden states and token embeddings."""
        encoder: Any = self.transformer
        states = encoder(input_ids=tokens).last_hidden_state
        # Whatever stands in its place: torch.func puts a tensor there that is not a parameter.
        return functional.linear(states, encoder.wte.weight)


class Classifier(nn.Module):
    """A transformer that predicts the class of a text: (B, L) tokens to scores (B, classes)."""

    def __init__(self, encoder: nn.Module, options: EncoderSizes, num_classes: int) -> None:
        super().__init__()
        self.transformer = encoder
        self.causal = ARCHITECTURES[options.architecture].causal
        self.head = nn.Linear(options.width, num_classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the head's class scores for the mean hidden state."""
        scores: torch.Tensor = self.head(mean_states(self.transformer, tokens, causal=self.causal))
        return scores


def mean_states(encoder: nn.Module, tokens: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """Return the mean of last hidden states over positions without padding: (B, L) to (B, width).

    A text of padding alone is its first position.
    """
    there = tokens != PADDING
    there = torch.cat([torch.ones_like(there[:, :1]), there[:, 1:]], dim=1)
    if causal:
        # Padding is at the end, where no other position sees it.
        states = encoder(input_ids=tokens).last_hidden_state
    else:
        length = tokens.shape[1]
        hidden = torch.where(there, 0.0, torch.finfo(torch.float32).min)
        mask = hidden[:, None, None, :].expand(-1, 1, length, length)
        states = encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
    weights = there[..., None].to(states.dtype)
    mean: torch.Tensor = (states * weights).sum(dim=1) / weights.sum(dim=1)
    return mean
