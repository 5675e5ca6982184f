"""Cryptography of one secure sum: keys, masks, secret sharing and signatures, without messages."""
