"""What the audit computes of each mechanism: a rule for runs, and what an entry in a node's ledger costs."""
