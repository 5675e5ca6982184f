"""Ledgers: what a run and what a client has been charged, and the terms between them."""
