"""Ledgers: what a run and what a client has been charged, and the terms that both agreed on."""
