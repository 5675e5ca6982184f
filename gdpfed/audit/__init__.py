"""The audit: it computes the privacy statement of a run again, from the run's files alone.

Nothing here imports what plans, trains or accounts: figures are computed anew with dp-accounting, files
are read as JSON, and what the code under audit believes is compared, never used.
"""
