"""Numbers: block layouts, and the kernels of every operation, for each backend."""
