"""What every entry point asks of its arguments."""

from __future__ import annotations

import numbers

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError

Logits = npt.NDArray[np.float32]


def is_integer(value: object) -> bool:
    """Whether ``value`` is an integer of Python or numpy; True and False are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_logits(logits: object, n_vocab: int | None, name: str = "logits") -> Logits:
    """Return ``logits`` unchanged if they are float32 ``[n_vocab]`` without NaN.

    Parameters
    ----------
    logits
        The array to check.
    n_vocab
        Wanted length; None accepts any length above zero.
    name
        What the error message calls the array.

    Raises
    ------
    InvalidInputError
        Wrong type, dtype or shape, or any NaN; the message says how many.
    """
    wanted = f"a float32 array of shape ({'n_vocab' if n_vocab is None else n_vocab},)"
    if not isinstance(logits, np.ndarray):
        raise InvalidInputError(f"{name}: found {type(logits).__name__}, wanted {wanted}")
    if logits.dtype != np.float32 or logits.ndim != 1 or logits.size == 0 or n_vocab not in (None, logits.size):
        raise InvalidInputError(f"{name}: found {logits.dtype} of shape {logits.shape}, wanted {wanted}")
    if np.isnan(logits.max()):  # max carries a NaN through, one pass without a temporary
        n_nan = np.count_nonzero(np.isnan(logits))
        raise InvalidInputError(f"{name}: found {n_nan} NaN among {logits.size} values, wanted none")
    return logits
