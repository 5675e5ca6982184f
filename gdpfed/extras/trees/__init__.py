"""Random trees: splits are drawn without data, and leaf values are learnt under noise."""
