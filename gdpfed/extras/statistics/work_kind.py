"""How statistics are accounted: counts of records as steps on records, clients' shares as updates."""

from gdpfed.record_steps import WorkKind

OF_RECORDS = WorkKind(on_records=True)
