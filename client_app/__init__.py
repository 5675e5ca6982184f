"""The Flower side of a client: one handler a message type."""
