"""The kinds of the statistics works: record counts are steps on records, client counts are updates."""

from gdpfed.record_steps import WorkKind

OF_RECORDS = WorkKind(on_records=True)
