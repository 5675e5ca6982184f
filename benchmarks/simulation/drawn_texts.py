"""Plays of random characters, in which every role says as much."""

from pathlib import Path

import numpy as np

from gdpfed.learning.data.text import CHARACTERS

LETTERS = [character for character in CHARACTERS if character.isalpha()]


def draw_plays(path: Path, *, num_roles: int, num_characters: int) -> None:
    """Write a text that ``dataset=shakespeare dataset.path=<path>`` reads."""
    generator = np.random.default_rng(0)
    speeches = [
        f"ROLE {role}:\n{''.join(generator.choice(LETTERS, num_characters))}" for role in range(num_roles)
    ]
    path.write_text("\n\n".join(speeches) + "\n", "utf-8")
