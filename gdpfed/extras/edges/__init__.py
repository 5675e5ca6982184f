"""An edge between its devices and the cloud: a run of its own below, one client above."""
