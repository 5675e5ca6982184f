"""Extras: optional parts that nothing imports; each is found by its name in `gdpfed/extras_table.py`."""
