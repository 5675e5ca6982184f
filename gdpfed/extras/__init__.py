"""Optional parts of gdpfed, which its other packages load only by names in `gdpfed/extras_table.py`."""
