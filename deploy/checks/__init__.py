"""What must hold for a Compose file, one promise a file; each check yields the problems that it finds."""
