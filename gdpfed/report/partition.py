"""Shows how examples are divided among clients, as a short table and a picture."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import numpy as np
import numpy.typing as npt
from matplotlib import pyplot as plt
from rich.table import Table

from gdpfed.files import PUBLIC_MODE, save_whole
from gdpfed.learning.data import Windows
from gdpfed.learning.task import Task
from gdpfed.report.console import rich_table
from gdpfed.report.metric_display import dataset_label

CLIENTS_DRAWN = 50
# One hue from light to dark: readable by the colour-blind and in grey.
COLOUR_MAP = "Blues"
BAR_COLOUR = "0.35"


@dataclass(frozen=True)
class Holdings:
    """How many examples of each class every client has.

    Attributes:
        title: data set and partition in words.
        counts: examples by client and class or label, shape (num_clients, num_classes), int64.
        examples: of each client, shape (num_clients,), int64; of persons with classes their rows.
        characters: of each client's text, shape (num_clients,), int64; None where the data is not text.
        names: what every client is called; empty where they have no names.
        classes_named: what every class or label is called.
        weighed: which of the two they are.
    """

    title: str
    counts: npt.NDArray[np.int64]
    examples: npt.NDArray[np.int64]
    characters: npt.NDArray[np.int64] | None
    names: tuple[str, ...] = ()
    classes_named: tuple[str, ...] = ()
    weighed: str = "class"

    @property
    def classes(self) -> npt.NDArray[np.int64]:
        """The number of different classes (or labels) among each client's examples, shape (num_clients,)."""
        present: npt.NDArray[np.int64] = (self.counts > 0).sum(axis=1)
        return present


def holdings(task: Task) -> Holdings:
    """Divide the training examples among clients, and count each client's examples by class.

    Raises LearningError: data that cannot be loaded, or a partition that does not fit it.
    """
    data = task.load()
    parts = [task.client_indices(client_id) for client_id in range(task.num_clients)]
    text = data.train if isinstance(data.train, Windows) else None
    label = dataset_label(task.source.name, task.source.path)
    told = task.dirichlet_alpha or task.shards
    option = "" if told is None else f"({told:g})"
    counts, labels = task.class_counts(), data.labels
    counted = labels.is_one_class and not task.at_every_position
    return Holdings(
        title=f"{label}, {task.partition}{option}, {task.num_clients} clients",
        counts=counts,
        examples=counts.sum(axis=1) if counted else np.array([len(part) for part in parts]),
        characters=None if text is None else np.array([text.characters(part) for part in parts]),
        names=task.client_names,
        classes_named=data.class_names if data.columns is None else data.columns.class_names,
        weighed=labels.weighed or "class",
    )


def partition_table(held: Holdings) -> Table:
    """Return a table of how many examples and classes a client has: minimum, median and maximum."""
    several = {"class": "classes", "label": "labels"}[held.weighed]
    counted = [("examples", held.examples), (several, held.classes)]
    if held.characters is not None:
        counted.append(("characters", held.characters))
    rows = [
        [name, *(f"{each:,.0f}" for each in (values.min(), np.median(values), values.max()))]
        for name, values in counted
    ]
    for row, (name, values) in zip(rows, counted, strict=True):
        row.append("" if name == several else f"{values.sum():,}")
    headings = ("a client has", "min", "median", "max", "sum")
    return rich_table(held.title, headings, rows, left=headings[:1], title_justify="center")


def parties_table(held: Holdings) -> Table | None:
    """Return a table of each party's examples by class; None if clients have no names or are too many."""
    if not 0 < len(held.names) <= CLIENTS_DRAWN:
        return None
    classes = held.classes_named or tuple(f"{held.weighed} {k}" for k in range(held.counts.shape[1]))
    rows = [
        (name, f"{total:,}", *(f"{count:,}" for count in counts if len(counts) > 1))
        for name, total, counts in zip(held.names, held.examples, held.counts, strict=True)
    ]
    headings = ("party", "examples", *(classes if len(classes) > 1 else ()))
    return rich_table("by party", headings, rows, left=headings[:1], title_justify="center")


def draw_partition(held: Holdings, path: Path) -> None:
    """Draw as PNG how many examples each client has, and the share of each class.

    Of more than :data:`CLIENTS_DRAWN` clients the first are drawn. Raises RunError: the file system refuses;
    no part of the picture is left.
    """
    shown = held.counts[:CLIENTS_DRAWN]
    figure, (sizes, labels) = plt.subplots(
        2, 1, figsize=(7.0, 4.6), sharex=True, height_ratios=(1, 2.2), layout="constrained"
    )
    values = held.examples if held.characters is None else held.characters
    heights = values[:CLIENTS_DRAWN]
    sizes.bar(np.arange(len(heights)) + 0.5, heights, color=BAR_COLOUR, width=0.8)
    sizes.set_ylabel("examples" if held.characters is None else "characters")
    shares = shown / np.maximum(held.examples[:CLIENTS_DRAWN, None], 1)
    mesh = labels.pcolormesh(shares.T, cmap=COLOUR_MAP, vmin=0)
    some = f" (the first {len(shown)} of {len(held.counts)})" if len(shown) < len(held.counts) else ""
    labels.set_xlabel(f"client{some}")
    labels.set_ylabel(held.weighed)
    # About ten clients and ten classes are named, each in the middle of its cell.
    for axis, count in zip((labels.xaxis, labels.yaxis), shown.shape, strict=True):
        positions = np.arange(0, count, max(1, count // 10))
        axis.set_ticks(positions + 0.5, [str(position) for position in positions])
    figure.colorbar(mesh, ax=labels, label="share of the client's examples")
    sizes.set_title(held.title)
    drawn = BytesIO()
    figure.savefig(drawn, dpi=150, format="png")
    plt.close(figure)
    save_whole(path, drawn.getvalue(), mode=PUBLIC_MODE)
