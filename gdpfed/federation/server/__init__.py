"""The server: who is there, what nodes are asked and offered, and who is left out."""
