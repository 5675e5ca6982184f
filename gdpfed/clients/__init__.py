"""What a client computes for one secure sum: it trains, weights, clips, encodes, and adds noise."""
