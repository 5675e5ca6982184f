"""A client's update on the GPU where it was trained: rounded, noised, masked and packed there."""
