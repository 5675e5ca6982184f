"""Accountants: from charges to epsilon, and from epsilon back to noise."""
