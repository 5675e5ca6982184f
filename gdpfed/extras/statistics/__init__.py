"""Statistics before a model: counts by columns and pairs of columns, in one noised and charged sum."""
