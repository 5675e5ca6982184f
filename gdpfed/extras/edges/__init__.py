"""Edge servers between devices and a cloud: server to their devices, one client to the cloud."""
