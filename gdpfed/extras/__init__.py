"""Optional parts of gdpfed; all other code loads them only by the names in `gdpfed/extras_table.py`."""
