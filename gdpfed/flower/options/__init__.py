"""The YAML file of ``dataset`` options for runs that train the model of a user's own Flower app."""
