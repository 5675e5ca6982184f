"""The client's work for one request: train, weigh, clip, encode, add noise."""
