"""What a report refuses."""


class ReportError(ValueError):
    """Runs that cannot be reported on; one line that names the directory and the remedy."""
