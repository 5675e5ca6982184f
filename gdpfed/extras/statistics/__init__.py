"""Statistics before a model: counts by column and by pairs of columns, as one noised sum that is charged."""
