"""What the works of statistics are: counts of records are steps on records, counts of clients are updates."""

from gdpfed.record_steps import WorkKind

OF_RECORDS = WorkKind(on_records=True)
