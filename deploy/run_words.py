"""The command-line words with which every training of a federation is submitted."""

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
    """Return the settings of a run's sums: the files of roster and consortium key, and the nodes' mode."""
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
    """Return the options with which ``deploy.operate train`` submits the signed app from two folders."""
    return (
        *("--signature", f"{public}/{APP_SIGNATURE}", "--consortium", f"{public}/{CONSORTIUM_FILE}"),
        *("--database", f"{state}/{DATABASE}"),
    )
