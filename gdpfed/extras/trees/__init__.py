"""Random trees: splits that are drawn without data, and leaf values that are learnt under noise."""
