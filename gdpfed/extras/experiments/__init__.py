"""Experiments: compare many training runs or privacy plans, as the GDPFed paper's tables and figures do."""
