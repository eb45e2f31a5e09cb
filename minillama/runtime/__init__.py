"""How kernels are driven: threads, the eager driver, and the memory of keys and values."""
