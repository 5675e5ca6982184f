"""Escapes names from users' data, so that Markdown and HTML show them as plain text."""

import re
from collections.abc import Sequence
from dataclasses import replace

from gdpfed.errors import printable
from gdpfed.report.mechanism_reports import CardSubject
from gdpfed.report.parts import Parts

_SPECIAL = re.compile(r"([\\`*\[\]<>#|&])")
_AT_THE_START = re.compile(r"^(\d*)([-+=~_.)])")


def text(name: str) -> str:
    """Escape a name with backslashes, so that Markdown and HTML show it as plain text."""
    line = " ".join(printable(name).split())
    return _AT_THE_START.sub(r"\1\\\2", _SPECIAL.sub(r"\\\1", line))


def in_markdown(subject: CardSubject) -> CardSubject:
    """Return a model card's content with all names escaped, so that Markdown shows them as plain text."""
    parts, rate, chance, end = subject.parts, subject.base_rate, subject.at_chance, subject.end
    columns = subject.columns
    if columns is not None:
        times = columns.times
        columns = replace(
            columns,
            label=text(columns.label),
            class_names=_texts(columns.class_names),
            numeric=tuple(replace(each, name=text(each.name)) for each in columns.numeric),
            categorical=tuple(replace(each, name=text(each.name)) for each in columns.categorical),
            label_set=tuple(replace(each, name=text(each.name)) for each in columns.label_set),
            times=times and replace(times, time=text(times.time), event=text(times.event)),
            purpose=text(columns.purpose),
            period=text(columns.period),
        )
    return replace(
        subject,
        parties=_texts(subject.parties),
        columns=columns,
        parts=None
        if parts is None
        else Parts([replace(party, name=text(party.name)) for party in parts.parties], parts.budgets),
        base_rate=None if rate is None else (text(rate[0]), rate[1]),
        at_chance=None if chance is None else replace(chance, most_frequent=text(chance.most_frequent)),
        end=None if end is None else replace(end, early=text(end.early)),
    )


def _texts(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(text, names))
