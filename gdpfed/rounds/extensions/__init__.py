"""Options of a run, one file each; a round works without them. `base` defines them, `table` lists them."""
