"""Arithmetic of one secure sum: updates and noise as integers modulo 2**b, packed into bytes."""
