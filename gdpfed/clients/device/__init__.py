"""A client's update on the GPU that it was trained on: rounded, noised, masked and packed there."""
