"""A federation of separate parties: one description, from which containers and loopback processes derive."""
