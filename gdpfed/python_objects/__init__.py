"""Python objects in place of settings: `objects.py` lists them, `named.py` gives them names."""
