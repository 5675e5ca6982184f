"""A Flower app that runs gdpfed's local training in Flower's own SecAgg+ workflow."""
