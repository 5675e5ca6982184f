"""How the privacy cost of statistics is computed: counts of records as steps, clients' shares as updates."""

from gdpfed.record_steps import WorkKind

OF_RECORDS = WorkKind(on_records=True)
