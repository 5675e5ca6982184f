"""Cryptography of one sum: keys, masks, shared secrets and signatures. It knows no order of messages."""
