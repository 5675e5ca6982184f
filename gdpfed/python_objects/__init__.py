"""Python objects in place of settings: `objects.py` lists them, `named.py` registers them by name."""
