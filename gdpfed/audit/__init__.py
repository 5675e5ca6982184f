"""The audit: the privacy statement of a run computed again, from its files alone.

Nothing here imports what plans, trains or accounts: figures are computed anew with dp-accounting, files
are read as JSON, and what the code under audit believes is compared, never used.
"""
