"""Systems: each package holds a method and everything that belongs to it, and is found by name."""
