"""The option file of runs that train an app's own model."""
