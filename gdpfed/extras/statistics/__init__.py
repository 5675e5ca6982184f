"""Private statistics of tables: counts by column and by pairs of columns, in one noised sum."""
