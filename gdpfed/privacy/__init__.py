"""Privacy plans: groups, sampling and noise, what they guarantee, and what has been spent."""
