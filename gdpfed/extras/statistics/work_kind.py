"""The kind of client computation that counts records; a count costs privacy like one training step."""

from gdpfed.record_steps import WorkKind

OF_RECORDS = WorkKind(on_records=True)
