"""Edge servers: each is the server of its own devices, and one client of a central server (the cloud)."""
