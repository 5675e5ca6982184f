"""Runs as commands read them: only such whose files are those that they left."""

from pathlib import Path

from gdpfed.errors import AuditError, ReportError


def require_sealed(path: Path) -> None:
    """Refuse a finished run whose files are not those that it left.

    Raises ReportError: names the first file that does not fit.
    """
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
