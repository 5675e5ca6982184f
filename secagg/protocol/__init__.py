"""The protocol of one sum: what server and clients send each other, in which order, and what they check."""
