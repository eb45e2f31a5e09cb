"""Fast kernels, written in SIMD vector types that numba compiles for whatever the machine has."""
