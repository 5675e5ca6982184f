"""The server's Flower app: reads the configuration, runs rounds over Flower, and writes a run's files."""
