"""The server: which nodes are there, what they are asked and offered, and which are left out."""
