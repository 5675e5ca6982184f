"""The node: its settings, its budget and ledger, and the requests that it refuses."""
