"""Tests of demo data: nodes without data get disjoint parts of the digits; a node's own data stays."""

from typing import Any

import numpy as np
import pytest

from deploy.federation import EXAMPLES_FILE, Federation
from deploy.init import provide_demo_data
from deploy.topology import DATA
from gdpfed.learning.data.own_files import read_own

FEDERATION = Federation.of(6)


@pytest.fixture
def root(tmp_path):
    for node in FEDERATION.nodes:
        (tmp_path / node.superexec / DATA).mkdir(parents=True)
    return tmp_path


def file_of(root, node):
    return root / node.superexec / DATA / EXAMPLES_FILE


def test_every_node_gets_examples_that_nobody_else_has(root):
    provide_demo_data(root, FEDERATION)
    owned: Any = [read_own(file_of(root, node)) for node in FEDERATION.nodes]
    assert {y.dtype.kind for _, y in owned} == {"i"}
    pictures = np.concatenate([x for x, _ in owned]).reshape(-1, 64)
    # The digits hold 1797 pictures, all different; a fifth of them is the server's test split.
    assert len(pictures) == len(np.unique(pictures, axis=0)) == 1437
    assert np.ptp([len(y) for _, y in owned]) <= 1


def test_what_a_node_has_brought_stays(root):
    own = root / FEDERATION.nodes[2].superexec / DATA / "mine.npz"
    own.write_bytes(b"mine")
    provide_demo_data(root, FEDERATION)
    assert [path.name for path in own.parent.iterdir()] == ["mine.npz"]
    assert own.read_bytes() == b"mine"
    assert file_of(root, FEDERATION.nodes[3]).is_file()
