"""Privacy accountants: compute the joint epsilon of releases, and the noise that an epsilon needs."""
