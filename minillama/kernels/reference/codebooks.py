"""The codebooks of the IQ types, as the ``gguf`` package has them.

A codebook is read when a kernel that needs it is compiled, and becomes a constant in the compiled code. Its digest is
checked here: a package with other tables is refused, and the folder of compiled kernels, named after a hash of all
sources, is named after the tables as well.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import overload

from minillama.errors import UnsupportedError
from minillama.kernels.types import I8

_DIGESTS = {
    "IQ1_S": "07540ffc1aeaf6ad",
    "IQ2_XXS": "05826b5d3e472a3a",
    "IQ2_XS": "06e47aaca60b4dc1",
    "IQ2_S": "e1aa1473412b0552",
    "IQ3_XXS": "46e35f5a997efdee",
    "IQ3_S": "bd1af4945a1717c6",
    "IQ4_NL": "61aa47540aa024b5",
}


@functools.cache
def codebook(name: str) -> I8:
    """The values of a type's codebook, read-only: int8 [entries, values of an entry], or [16] for IQ4_NL.

    Raises
    ------
    UnsupportedError
        The installed ``gguf`` has another table than ggml.
    """
    import gguf.quants

    quants = getattr(gguf.quants, name)
    quants.init_grid()
    values = quants.kvalues if quants.grid is None else quants.grid.reshape(quants.grid_shape)
    table = np.array(values, np.int8)
    found = hashlib.sha256(table.tobytes()).hexdigest()[:16]
    if found != _DIGESTS[name]:
        raise UnsupportedError(f"gguf's codebook of {name} has the digest {found}, ggml's has {_DIGESTS[name]}")
    table.flags.writeable = False
    return table


def _function(name: str) -> Callable[[], I8]:
    """A function of no arguments that kernels call to get a codebook, compiled or not."""

    def table() -> I8:
        return codebook(name)

    @overload(table)
    def _table_overload() -> Any:
        constant = codebook(name)

        def compiled() -> Any:
            return constant

        return compiled

    return table


iq1_grid = _function("IQ1_S")  # of IQ1_M too
iq2_xxs_grid, iq2_xs_grid, iq2_s_grid = _function("IQ2_XXS"), _function("IQ2_XS"), _function("IQ2_S")
iq3_xxs_grid, iq3_s_grid = _function("IQ3_XXS"), _function("IQ3_S")
iq4_values = _function("IQ4_NL")  # of IQ4_XS too
