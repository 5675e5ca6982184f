"""What a client and the evaluating server compute with a model; knows no privacy accounting and no Flower."""
