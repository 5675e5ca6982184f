"""Shows a comparison of models on a terminal: first all test rows, then each party."""

from gdpfed.learning.labels.intervals import FEWEST
from gdpfed.report.console import Table
from gdpfed.report.worth import BY_PARTY, EVERYWHERE, MOST_COLUMNS, NOTE, Worth


def shown_tables(worth: Worth) -> list[Table]:
    """Return tables of accuracy and AUC for all test rows, then for each party with enough rows."""
    overall = _of(worth, EVERYWHERE)
    rows = [[model, worth.privacy[model], *figures] for model, *figures in overall.rows]
    title = f"{worth.title}: {overall.title}"
    first = Table(title, ("model", "privacy", *BY_PARTY), rows, NOTE)
    return [first, *(_of(worth, party) for party in worth.parties if worth.rows[party] >= FEWEST)]


def small_parties(worth: Worth) -> list[str]:
    """Return the parties with too few test rows to be shown."""
    return [party for party in worth.parties if worth.rows[party] < FEWEST]


def small_line(worth: Worth) -> str:
    """Name the parties with too few test rows to be shown; "" if there are none."""
    few = small_parties(worth)
    named = ", ".join(few) if len(few) <= MOST_COLUMNS else f"{len(few)} of {len(worth.parties)}"
    return f"Of parties with fewer than {FEWEST} test rows nothing is shown: {named}" if few else ""


def _of(worth: Worth, party: str) -> Table:
    """Return a table of accuracy and AUC on the test rows of one party, or of all parties."""
    figures = worth.figures.items()
    rows = [[model, *(each[party][name].text() for name in BY_PARTY)] for model, each in figures]
    share = f"{100 * worth.prevalence[party]:.1f} % of them {worth.positive}"
    return Table(f"{party}: {worth.rows[party]} test rows, {share}", ("model", *BY_PARTY), rows)
