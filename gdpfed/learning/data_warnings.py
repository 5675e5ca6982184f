"""Warns about weak points of a task's data before a run starts."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from gdpfed.learning.data import Windows, load_dataset
from gdpfed.learning.data.cut import cut_warnings
from gdpfed.learning.data.party_files import not_read
from gdpfed.learning.data.persons import REPEATED_PERSONS, beyond_parties
from gdpfed.learning.data.picture_folders import counts_in_words, ending_of
from gdpfed.learning.data.table_file import listed
from gdpfed.learning.data.tabular import undeclared_persons
from gdpfed.learning.task import Task

MOST_NAMED = 5
"""Of classes without an example, parties and files, in a warning."""


def data_warnings(task: Task) -> Iterator[str]:
    """Yield warnings about weak points of a task's data, one line each.

    One line for files that are not tables, one for clients without examples, and one for classes that no
    training example has.
    """
    data, num_clients = task.load(), task.num_clients
    path = Path(task.source.path or "").expanduser()
    if task.source.name == "csv" and path.is_dir() and (others := not_read(path)):
        shown = ", ".join(others[:MOST_NAMED])
        if len(others) > MOST_NAMED:
            shown = f"{len(others)} files, {counts_in_words(Counter(map(ending_of, others)))}"
        yield f"dataset.path={path} holds {shown}: these are not tables, and are not read"
    yield from data.notes
    if not len(data.train):
        return  # All of them are the nodes'.
    yield from cut_warnings(data)
    taking_part = {*task.client_names}
    left_out = [name for name in data.owner_names if name not in taking_part]
    if taking_part and left_out:
        yield (
            f"dataset.num_clients={num_clients} leaves out {len(left_out)} of {len(data.owner_names)} "
            f"parties: {listed(left_out, MOST_NAMED)}; set dataset.num_clients={len(data.owner_names)} to "
            "train all"
        )
    if task.source.name == "csv" and (column := undeclared_persons(task.source)):
        yield REPEATED_PERSONS.format(column)
    if task.by_person and (shared := beyond_parties(load_dataset(task.source))):
        yield shared
    if task.partition == "iid" and num_clients > len(data.train):
        yield (
            f"dataset.num_clients={num_clients} for {len(data.train)} training examples: "
            f"{num_clients - len(data.train)} clients hold none, and send nothing but noise unless their "
            f"nodes have data of their own. Set dataset.num_clients={len(data.train)} or fewer"
        )
    if isinstance(data.train, Windows):
        return  # Characters, of which a text need not have all.
    missing = data.labels.unlearnt(data.train.y, data.test.y)
    if len(missing):
        named = listed([data.named_classes[number] for number in missing.tolist()], MOST_NAMED)
        yield f"{data.labels.weighed} {named} {data.labels.unlearnt_words}".lstrip()
