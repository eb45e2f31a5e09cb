"""The readable oracle of every kernel: plain loops in the order of ggml's scalar code."""
