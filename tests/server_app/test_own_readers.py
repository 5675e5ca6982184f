"""Tests of a package that reads a node's own files, as docs/extending.md shows, by its entry point."""

import re

import numpy as np
import pytest

from gdpfed.errors import LearningError
from gdpfed.federation.node.join_checks import usable_data
from gdpfed.federation.node.node_config import NodeConfigError
from gdpfed.learning.data.dataset import ExampleForm
from gdpfed.learning.data.own import OwnData, own_held_out, own_split
from gdpfed.learning.data.own_files import READERS, read_own
from testing.project import DOCS

GUIDE = DOCS / "extending.md"
BEATS = np.random.default_rng(0).uniform(-3, 3, (40, 8)).round(3)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a package with the reader that docs/extending.md shows, and with a reader for folders."""
    (code,) = re.findall(
        r"\*\*`my_extension/ecg.py`\*\*\n\n```python\n(.*?)```", GUIDE.read_text(), re.DOTALL
    )
    site = tmp_path / "site"
    metadata = site / "heartbeats-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: heartbeats\nVersion: 1.0\n")
    entries = "[gdpfed.own_data]\necg = heartbeats_of_ours:read\nfolder = heartbeats_of_ours:read_all\n"
    (metadata / "entry_points.txt").write_text(entries)
    more = "\n\ndef read_all(path):\n    return read(path / 'all.ecg')\n"
    (site / "heartbeats_of_ours.py").write_text(code + more)
    monkeypatch.syspath_prepend(site)


def beats(path, rows=BEATS):
    path.write_text("".join(f"{at % 2} {' '.join(map(str, row))}\n" for at, row in enumerate(rows)))
    return path


@pytest.mark.usefixtures("package")
def test_a_node_joins_and_trains_with_files_that_a_package_reads(tmp_path):
    assert {"ecg", "folder"} < {*READERS.names()}
    form = ExampleForm((8,), "float32", 2)
    own = OwnData(beats(tmp_path / "march.ECG"), held_out_share=0.25)
    (trained,) = usable_data(own)
    split, held_out = own_split(own.path, form, 0.25), own_held_out(own, form)
    np.testing.assert_array_equal(split.x, trained.x)
    assert len(split) + len(held_out) == 40
    x = np.asarray(read_own(own.path)[0])
    np.testing.assert_allclose(x, np.clip(BEATS / 2, -1, 1), atol=1e-6)
    (tmp_path / "all").mkdir()
    beats(tmp_path / "all" / "all.ecg", BEATS[:10])
    assert len(own_split(tmp_path / "all", form)) == 10


@pytest.mark.usefixtures("package")
def test_what_a_package_cannot_read_keeps_the_node_out_in_words_that_tell_nothing(tmp_path):
    path = beats(tmp_path / "a.ecg", BEATS[:, :5])
    with pytest.raises(LearningError, match="has 6 numbers a line, and a heartbeat has a label and 8"):
        read_own(path)
    with pytest.raises(NodeConfigError, match="data cannot be used, see the log of this client$"):
        usable_data(OwnData(path))


def test_without_the_package_the_ending_is_named(tmp_path):
    with pytest.raises(LearningError, match="kind of file 'ecg' is not known: use csv, npz, parquet"):
        read_own(beats(tmp_path / "a.ecg"))
