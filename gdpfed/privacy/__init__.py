"""Who is grouped, sampled and noised how, what that guarantees, and what of it is spent."""
