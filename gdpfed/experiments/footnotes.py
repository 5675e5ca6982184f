"""Numbered reasons below a table for what is missing in it."""


class Footnotes:
    """Gives every reason one number, in the order in which they are first met."""

    def __init__(self) -> None:
        self._reasons: list[str] = []

    def mark(self, reason: str) -> str:
        """What stands in the cell."""
        if reason not in self._reasons:
            self._reasons.append(reason)
        return f"missing ({self._reasons.index(reason) + 1})"

    def text(self) -> str:
        """All reasons, a line each."""
        return "\n".join(f"({number}) {reason}" for number, reason in enumerate(self._reasons, start=1))
