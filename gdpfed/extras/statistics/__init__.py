"""Statistics before a model: counts by column and by pairs of columns, in one noised and charged sum."""
