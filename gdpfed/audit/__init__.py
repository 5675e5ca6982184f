"""A second opinion on finished and running trainings, from their files alone.

Nothing here imports what plans, trains or accounts: figures are computed anew with dp-accounting, files
are read as JSON, and what the code under audit believes is compared, never used.
"""
