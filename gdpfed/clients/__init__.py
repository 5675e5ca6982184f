"""What a client does for one request: train, clip, weight, add noise, encode."""
