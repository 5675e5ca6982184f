"""What a client computes for one request: it trains, weighs, clips, encodes, and adds noise."""
