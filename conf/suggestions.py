"""Suggests what was meant by a setting that is not known, or by a value that stands for several runs."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields

from omegaconf import DictConfig, ListConfig, OmegaConf

from conf.option_files import groups, method_configs

SETTING_BY_WORD: Mapping[str, str] = {
    **dict.fromkeys(("epsilon", "eps", "target_epsilon", "epsilons"), "privacy.budgets"),
    "target_delta": "privacy.delta",
    **dict.fromkeys(
        ("sigma", "noise_multiplier", "noise_stddev", "noise_scale"), "noise follows from privacy.budgets"
    ),
    **dict.fromkeys(("max_grad_norm", "clip", "clip_norm", "l2_norm_clip"), "privacy.clipping_norm"),
    "lr": "training.learning_rate",
    "batch_size": "training.batch_size",
    **dict.fromkeys(
        ("epochs", "local_epochs", "num_epochs"),
        "a client takes training.local_steps steps in each of run.num_rounds rounds",
    ),
    "num_server_rounds": "run.num_rounds",
    **dict.fromkeys(("fraction_fit", "client_fraction"), "privacy.sampling_rate"),
}
"""By a word of the field, or of another library, the setting that has its place here, or a sentence."""
_DECIMAL_COMMA = re.compile(r"(-?\d*),(\d+)")


def suggestion(key: str, known: Sequence[str]) -> str:
    """Return what may be meant by a setting that is not known, as the end of a sentence that says so."""
    section, _, setting = key.partition(".")
    methods = method_configs() if section == "method" else {}
    owners = [name for name, each in methods.items() if setting in {field.name for field in fields(each)}]
    if owners:
        return f" for this method; it belongs to method={' or method='.join(owners)}"
    near = SETTING_BY_WORD.get(key.rpartition(".")[2].casefold()) or nearest(key, known)
    hint = f"; did you mean '{near}'?" if near in known else f"; {near}." if near else ";"
    listed = f"gdpfed settings {section}" if section in groups() else "gdpfed settings"
    return f"{hint} '{listed}' lists what there is"


def nearest(key: str, known: Sequence[str]) -> str | None:
    """Return the known key that is most similar to an unknown one, by its whole name or its last part.

    Of a data set's recommendation and the setting that starts from it, it is the setting.
    """
    ends = {
        each.rpartition(".")[2]: each
        for each in sorted(known, key=lambda each: not each.startswith("dataset."))
    }
    near = difflib.get_close_matches(key.rpartition(".")[2], list(ends), n=len(ends))
    # A long name of the group in front makes any two settings of it alike.
    whole = difflib.get_close_matches(key, [each for each in known if each.rpartition(".")[2] in near], n=1)
    return whole[0] if whole else ends[near[0]] if near else None


def as_one_run(key: str, value: str, tree: DictConfig) -> str:
    """Return how to write a value with commas for one run, as a list or with a decimal point; "" if neither.

    `value`: what Hydra reads as values of several runs. `tree`: the settings, whose types decide.
    """
    group, _, name = key.partition(".")
    if group not in tree or name not in tree[group] or re.search(r"[^\w.,+-]", value):
        return ""
    node = tree[group]._get_node(name)
    if isinstance(node, ListConfig) or OmegaConf.is_list(OmegaConf.select(tree, key)):
        return f", or, for one list, '{key}=[{value}]'"
    number = _DECIMAL_COMMA.fullmatch(value)
    if number is None or node._metadata.ref_type is not float:
        return ""
    return f", or, with a decimal point, {key}={number[1] or 0}.{number[2]}"
