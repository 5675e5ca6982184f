"""Extras: nothing imports one. Each is found by the names that `gdpfed/extras_table.py` has for it."""
