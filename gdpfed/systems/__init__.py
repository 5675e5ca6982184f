"""Systems: a method with all that goes with it, each a package that the others find by name."""
