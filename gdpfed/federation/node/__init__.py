"""The node: what it was told at its start, its budget and ledger, and what it refuses."""
