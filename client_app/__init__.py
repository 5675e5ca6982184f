"""The Flower adapter of a client: one handler for each message type."""
