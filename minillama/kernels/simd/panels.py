"""Sums of products with a panel of the cache: what scores and outputs of attention have in common.

A panel is up to ``STEPS`` rows of lanes: positions of a block for some of the head dimensions, or values of the head
for the positions of a block. Every lane has a double sum; row after row, the product of the lane with the row's factor
is added, rounded to float32 first. Products of halves have 22 bits and are exact in either precision, so a cache of
halves is widened to doubles once per panel and its products are added without conversions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.kernels.bits import half_to_float
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.simd.floats import (
    WIDE,
    add_exact_product,
    load_doubles,
    load_floats,
    splat_doubles,
    splat_floats,
    unknown_one,
)
from minillama.kernels.simd.lanes import prefetch
from minillama.kernels.simd.vectors import halves_to_f32, load_u16x16, multiply, store, to_f64
from minillama.kernels.types import F32, F64, U8, U16

LANES = 16
STEPS = 64
_LINE = 64  # bytes
PANEL_BYTES = 8 * STEPS * STEPS

Panel = npt.NDArray[Any]


@jit(allocates=True)
def _panel_f32(
    cache: F32, at: int, stride: int, steps: int, lanes: int, _next: int, scratch: U8
) -> tuple[F32, int, int]:
    """The cache itself (``add_panel`` asks for the next); a copy with zeros behind lanes that fill no whole vectors."""
    if lanes % LANES == 0:
        return cache, at, stride
    padded = lanes + -lanes % LANES
    panel = scratch.view(np.float32)
    for i in range(steps):
        for lane in range(padded):
            panel[i * padded + lane] = cache[at + i * stride + lane] if lane < lanes else np.float32(0)
    return panel, 0, padded


@jit(allocates=True)
def _panel_f16(
    cache: U16, at: int, stride: int, steps: int, lanes: int, next_at: int, scratch: U8
) -> tuple[F64, int, int]:
    """The halves as doubles, padded with zeros to whole vectors."""
    padded = lanes + -lanes % LANES
    panel = scratch.view(np.float64)
    for i in range(steps):
        if next_at >= 0:
            for line in range(0, 2 * lanes, _LINE):
                prefetch(cache, 2 * (next_at + i * stride) + line)
        for lane in range(0, lanes - lanes % LANES, LANES):
            halves = load_u16x16(cache, 2 * (at + i * stride + lane))
            store(panel, 8 * (i * padded + lane), to_f64(halves_to_f32(halves)))
        for lane in range(lanes - lanes % LANES, padded):
            value = np.float32(0)
            if lane < lanes:
                value = half_to_float(np.uint32(cache[at + i * stride + lane]))
            panel[i * padded + lane] = np.float64(value)
    return panel, 0, padded


# panel_of(flat cache, at, stride, steps, lanes, the next panel's at, scratch of PANEL_BYTES) -> (panel, at, stride), in
# elements; the next panel is asked for meanwhile, unless its place is negative.
PANEL: dict[np.dtype[Any], Kernel] = {np.dtype(np.float32): _panel_f32, np.dtype(np.uint16): _panel_f16}


def _make_sum_f32(lanes: int, n_asked: int) -> Kernel:
    """The last argument is where the first of ``n_asked`` lanes is that each row of the next panel is asked for."""
    load, splat = load_floats(lanes), splat_floats(lanes)
    load_sum, splat_one = load_doubles(lanes), splat_doubles(lanes)

    @jit(name=f"sum_products_f32_{lanes}_asking_{n_asked}")
    def sum_products(
        sums: F64, place: int, panel: F32, at: int, stride: int, factors: F32, first: int, steps: int, next_at: int
    ) -> None:
        total, one = load_sum(sums, 8 * place), splat_one(unknown_one())
        for i in range(steps):
            for line in range(0, 4 * n_asked, _LINE):
                prefetch(panel, 4 * (next_at + i * stride) + line)
            product = multiply(load(panel, 4 * (at + i * stride)), splat(factors[first + i]))
            total = add_exact_product(total, to_f64(product), one)
        store(sums, 8 * place, total)

    return sum_products


def _make_sum_f16(lanes: int) -> Kernel:
    load, splat = load_doubles(lanes), splat_doubles(lanes)

    @jit(name=f"sum_products_f16_{lanes}")
    def sum_products(
        sums: F64, place: int, panel: F64, at: int, stride: int, factors: F32, first: int, steps: int, _next_at: int
    ) -> None:
        total = load(sums, 8 * place)
        for i in range(steps):
            factor = splat(np.float64(factors[first + i]))
            total = add_exact_product(total, load(panel, 8 * (at + i * stride)), factor)
        store(sums, 8 * place, total)

    return sum_products


def _make_add_panel(name: str, sum_wide: Kernel, ask_all: Kernel, ask_half: Kernel, sum_narrow: Kernel) -> Kernel:
    @jit(name=f"add_panel_{name}")
    def add_panel(
        sums: F64, place: int, panel: Panel, at: int, stride: int, factors: F32, first: int, steps: int, lanes: int,
        next_at: int, i: int, n: int,
    ) -> None:  # fmt: skip
        """Add ``steps`` rows of a panel times their factors to the sums from ``place`` on, lanes rounded up to 16.

        A panel that is the cache itself has the one at ``next_at`` asked for meanwhile, unless that is negative: half
        of it by each of the first two queries, ``i`` being this one and ``n`` their number.
        """
        lane = 0
        while lanes - lane > WIDE - LANES:
            if next_at < 0 or i > 1:
                sum_wide(sums, place + lane, panel, at + lane, stride, factors, first, steps, -1)
            elif n == 1:
                ask_all(sums, place + lane, panel, at + lane, stride, factors, first, steps, next_at + lane)
            else:
                half = next_at + lane + i * (WIDE // 2)
                ask_half(sums, place + lane, panel, at + lane, stride, factors, first, steps, half)
            lane += WIDE
        while lane < lanes:
            sum_narrow(sums, place + lane, panel, at + lane, stride, factors, first, steps, -1)
            lane += LANES

    return add_panel


_wide_f32, _ask_all, _ask_half = _make_sum_f32(WIDE, 0), _make_sum_f32(WIDE, WIDE), _make_sum_f32(WIDE, WIDE // 2)
_wide_f16 = _make_sum_f16(WIDE)
ADD_PANEL: dict[np.dtype[Any], Kernel] = {
    np.dtype(np.float32): _make_add_panel("f32", _wide_f32, _ask_all, _ask_half, _make_sum_f32(LANES, 0)),
    np.dtype(np.uint16): _make_add_panel("f16", _wide_f16, _wide_f16, _wide_f16, _make_sum_f16(LANES)),
}
