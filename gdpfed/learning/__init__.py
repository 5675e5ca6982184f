"""Data, models, local training and evaluation, without privacy accounting and without Flower."""
