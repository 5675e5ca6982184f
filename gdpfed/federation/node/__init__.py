"""The node: its settings, its budget and ledger, and what it refuses."""
