"""Rounds a client's update, adds noise and masks, and packs the result, on the GPU that trained it."""
