"""Command-line arguments that all trainings of a federation have in common."""

from deploy.federation import Federation
from deploy.topology import (
    APP_SIGNATURE,
    CONSORTIUM_FILE,
    CREDENTIALS,
    DATABASE,
    ROSTER_FILE,
    SERVER_SUPEREXEC,
    Placement,
)
from secagg import ACTIVE


def secagg_words(federation: Federation, place: Placement | None = None) -> tuple[str, ...]:
    """Return secure aggregation settings: mode, and files of the members' and consortium's public keys."""
    roster, consortium = (
        place.credential(SERVER_SUPEREXEC, name) if place else f"{CREDENTIALS}/{name}"
        for name in (ROSTER_FILE, CONSORTIUM_FILE)
    )
    return (
        *(("secagg.mode=active",) if federation.secagg_mode == ACTIVE else ()),
        f"secagg.roster_file={roster}",
        f"secagg.consortium_key={consortium}",
    )


def signed_words(public: str, state: str) -> tuple[str, ...]:
    """Return the ``deploy.operate train`` options with the paths of app signature, key and database."""
    return (
        *("--signature", f"{public}/{APP_SIGNATURE}", "--consortium", f"{public}/{CONSORTIUM_FILE}"),
        *("--database", f"{state}/{DATABASE}"),
    )
