"""The kind of client computation that counts records for statistics; a count costs privacy as a step does."""

from gdpfed.record_steps import WorkKind

OF_RECORDS = WorkKind(on_records=True)
