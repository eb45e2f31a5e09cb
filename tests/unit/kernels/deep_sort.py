"""Values that take ``std::sort`` so deep that it falls back to a heap.

An adversary answered its comparisons (McIlroy, "A Killer Adversary for Quicksort"): every pivot is nearly the smallest.
"""

import numpy as np

ASCENDING = np.array(
    [
        46, 1, 53, 3, 61, 5, 51, 7, 57, 9, 49, 11, 63, 13, 47, 15, 55, 17, 45, 19, 59, 21, 24, 23, 62, 60, 58, 56, 54,
        52, 50, 48, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 44, 41, 42, 39, 40, 37, 38, 35, 36, 33, 34, 31, 32, 29,
        30, 27, 28, 25, 26, 43,
    ],
    np.float32,
)  # fmt: skip
