"""Rounds, noises, masks and packs a client's update on the GPU where it was trained."""
