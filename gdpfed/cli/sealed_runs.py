"""Lets commands read only finished runs whose files have not changed since they ended."""

from pathlib import Path

from gdpfed.errors import AuditError, ReportError


def require_sealed(path: Path) -> None:
    """Raise ReportError if a file of a finished run has changed since the run ended."""
    from gdpfed.audit.seal_checks import seal_findings

    try:
        findings = seal_findings(path)
    except AuditError as error:
        raise ReportError(f"{path} cannot be compared with its seal: {error}") from None
    if findings:
        more = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
        raise ReportError(
            f"{path} is not as the run left it: {findings[0]}{more}: restore it from a copy, or leave it out"
        )
