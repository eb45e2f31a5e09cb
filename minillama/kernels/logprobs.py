"""How likely tokens are, in the arithmetic of llama.cpp's perplexity."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from minillama.kernels.jit import jit
from minillama.kernels.reference.libm import expf
from minillama.kernels.types import F32, I64


@jit(allocates=True)
def token_logprobs(logits: F32, tokens: I64, out: npt.NDArray[np.float64]) -> None:
    """``log_softmax`` of llama-perplexity: one double sum, in order, of float exponentials."""
    for row in range(len(logits)):
        largest = logits[row].max()
        total = np.float64(0)
        for column in range(logits.shape[1]):
            total += np.float64(expf(np.float32(logits[row, column] - largest)))
        out[row] = np.float64(np.float32(logits[row, tokens[row]] - largest)) - math.log(total)
