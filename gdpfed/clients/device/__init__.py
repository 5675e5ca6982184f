"""Turns an update into masked, packed integers on the GPU that trained it: rounding, noise, masks."""
