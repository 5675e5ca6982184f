"""What an experiment refuses."""


class ExperimentError(ValueError):
    """An experiment that cannot be carried out as asked; one line that names the value and the remedy."""
