"""Accept Python objects, such as models and data, in place of settings, and register them by name."""
