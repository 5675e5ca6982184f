"""Objects of a Python program in place of settings: `objects.py` says which, `named.py` gives them names."""
