"""Accountants compute epsilon from charges, and the noise that an epsilon needs."""
