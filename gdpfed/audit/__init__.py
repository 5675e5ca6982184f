"""The audit, which recomputes the privacy guarantee of a run from nothing but the run's files.

Nothing here imports what plans, trains or accounts: figures are computed anew with dp-accounting, files
are read as JSON, and what the code under audit believes is compared, never used.
"""
