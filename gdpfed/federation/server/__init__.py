"""The server's side of a federation, free of Flower."""
