"""The option file of ``dataset`` for runs that train the model of a user's own Flower app."""
