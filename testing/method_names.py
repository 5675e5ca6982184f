"""Methods by what they do."""

from gdpfed.methods import METHODS

TRAINING = [name for name, method in METHODS.items().items() if method.curve is not None]
"""Methods that train a model, which has a curve; the others count."""
