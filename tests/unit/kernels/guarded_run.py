"""Run every kernel of the cpu backend on arrays that end, or begin, at memory that may not be touched.

A weight is a view of a mapped file: a vector load that reaches past the last row of the last tensor ends the process.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import kernel_inputs as inputs

from minillama.kernels.layouts import LAYOUTS, WEIGHT_TYPES
from minillama.kernels.registry import kernel_set

PAGE = mmap.PAGESIZE
MAPPINGS = []  # keeps the memory of the arrays


def guarded(array: np.ndarray, *, at_end: bool) -> np.ndarray:
    """A copy whose last byte is the last, or first byte the first, before memory without any access."""
    inner = -(-max(array.nbytes, 1) // PAGE) * PAGE
    mapping = mmap.mmap(-1, inner + 2 * PAGE)
    MAPPINGS.append(mapping)
    base = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    for page in (base, base + PAGE + inner):
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0):
            raise OSError("mprotect failed")
    start = PAGE + (inner - array.nbytes if at_end else 0)
    copy = np.frombuffer(mapping, array.dtype, array.size, start).reshape(array.shape)
    copy[...] = array
    return copy


def run_matrices(*, at_end: bool) -> None:
    kernels = kernel_set("cpu")
    for type_ in WEIGHT_TYPES:
        layout, rng = LAYOUTS[type_], inputs.generator("guarded", type_.name)
        # Few and many rows and tokens, and blocks that are no multiple of those taken at a time.
        for n_rows, n_tokens, n_blocks in ((3, 2, 3), (17, 1, 5), (16, 9, 3), (19, 17, 5)):
            n = n_blocks * max(32, layout.block_size)
            weight = guarded(inputs.packed_rows(type_, n_rows, n, rng), at_end=at_end)
            x = guarded(inputs.input_rows("normal", n_tokens, n, rng), at_end=at_end)
            activation = guarded(inputs.quantize(kernels, layout.activation, x), at_end=at_end)
            kernels.quantize[layout.activation](x, activation, 0, n_tokens)
            inputs.get_rows(kernels, type_, weight, n)
            out = guarded(np.empty((n_tokens, n_rows), np.float32), at_end=at_end)
            scratch = guarded(np.empty(kernels.mul_mat_scratch(type_, n, n_tokens), np.uint8), at_end=at_end)
            weight.flags.writeable = False
            kernels.mul_mat[type_](weight, activation, n, out, scratch, 0, n_rows)


def run_attention(*, at_end: bool) -> None:
    kernels = kernel_set("cpu")
    # Every block is full, so that one of the last slots of the last block is read too, whatever the order of blocks.
    case = inputs.attention_case(inputs.generator("guarded"), (128, 64, 64), n_head_kv=2, head_dim=24, value_dim=40)
    for dtype in (np.float32, np.uint16):
        keys, values = (guarded(part, at_end=at_end) for part in case.cache(kernels, np.dtype(dtype)))
        q, out = guarded(case.q, at_end=at_end), guarded(np.empty((3, 80), np.float32), at_end=at_end)
        scratch = guarded(np.empty(kernels.attention_scratch(128, 24), np.uint8), at_end=at_end)
        place = case.table, case.sequence, case.position
        k, v = (guarded(rows, at_end=at_end) for rows in (case.k[0], case.v[0]))
        kernels.store_kv[np.dtype(dtype)](
            k, v, case.table, np.zeros(128, np.int64), np.arange(128), keys, values, 0, 128
        )
        kernels.attention[np.dtype(dtype)](
            q, keys, values, *place, 2, case.scale, out, scratch, 0, kernels.attention_items(3, 2)
        )
        special = 70, np.float32(2), guarded(np.zeros(2, np.float32), at_end=at_end)
        scratch = guarded(np.empty(kernels.attention_window_scratch(128, 24, 40), np.uint8), at_end=at_end)
        n_items = kernels.attention_window_items(3, 2)
        kernels.attention_window[np.dtype(dtype)](
            q, keys, values, *place, 2, case.scale, *special, out, scratch, 0, n_items
        )
        scores, weights = (guarded(np.empty((3, 2, 128), np.float32), at_end=at_end) for _ in range(2))
        kernels.attention_scores[np.dtype(dtype)](q, keys, *place, 2, scores, 0, 6)
        kernels.attention_soft_max(scores, case.position, 2, case.scale, *special, weights, 0, 6)
        kernels.attention_outputs[np.dtype(dtype)](weights, values, *place, 2, out, 0, 6)


def run_rows(*, at_end: bool) -> None:
    kernels = kernel_set("cpu")
    for n in (1, 16, 24, 50):
        rng = inputs.generator("guarded", n)
        x, y, out = (guarded(inputs.input_rows("normal", 3, n, rng), at_end=at_end) for _ in range(3))
        weight = guarded(inputs.as_weight(y[0]), at_end=at_end)
        one = np.float32(1)
        for kernel in (kernels.rms_norm, kernels.layer_norm):
            kernel(x, weight, one, out, 0, 3)
        for kernel in (kernels.add, kernels.div, *kernels.gated.values()):
            kernel(x, y, out, 0, 3)
        for kernel in (kernels.add_bias, kernels.mul_row):
            kernel(x, weight, out, 0, 3)
        for kernel in kernels.activation.values():
            kernel(x, out, 0, 3)
        kernels.mul_column(x, guarded(y[:, :1], at_end=at_end), out, 0, 3)
        kernels.scale(x, one, one, out, 0, 3)
        kernels.softcap(x, one, out, 0, 3)
        kernels.swiglu_oai(x, y, one, one, out, 0, 3)
        kernels.select_rows(x, np.array([2, 0, 2]), out, 0, 3)
        kernels.select_columns(x, n // 2, guarded(y[:, n // 2 :], at_end=at_end), 0, 3)
        if n % 2 == 0:
            table = guarded(y.reshape(3, n // 2, 2), at_end=at_end)
            for rope in (kernels.rope_norm, kernels.rope_neox):
                rope(x, table, 1, out, 0, 3)


if __name__ == "__main__":
    for at_end in (True, False):
        run_matrices(at_end=at_end)
        run_attention(at_end=at_end)
        run_rows(at_end=at_end)
    print("nothing outside was touched")
