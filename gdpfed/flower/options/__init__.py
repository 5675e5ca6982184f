"""The option file for runs that train an app's own model."""
