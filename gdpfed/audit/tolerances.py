"""How far a stated number may be from the one that the audit computes."""

ROUNDING = 1e-9
"""A relative difference of numbers that a file has to nine digits, or of two computations by one formula."""
SAME_FIGURE = 1e-6
"""A relative difference of one figure that is computed twice, or of noise on a grid of integers."""
TWO_BOUNDS = 0.02
"""A relative difference of two upper bounds of one figure, by accountants with grids of their own."""
