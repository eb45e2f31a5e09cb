"""Configuration, weights and forward passes of the model families."""
