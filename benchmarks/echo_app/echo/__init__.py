"""Vectors there and back."""
