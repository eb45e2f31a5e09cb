"""Norms, arithmetic, activations and rotary embedding beside ggml's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from minillama.kernels.reference import elementwise
from minillama.kernels.reference.activations import ACTIVATIONS, GATED, swiglu_oai
from minillama.kernels.reference.libm import powf
from minillama.kernels.reference.rope import rope_neox, rope_norm, rope_table_yarn, yarn_range
from tests.reference import ggml_graph
from tests.reference.operation import Arguments, Array, Operation, each, rows, run
from tests.unit.kernels import kernel_inputs as inputs
from tests.unit.kernels import oracles

CONTRACTED = "products are fused with the additions after them; where these cancel, what was rounded off shows"
ANGLES = "the fused angle differs in its last bit, which at position 1,000,003 is a sixteenth of a radian"
EIGHT_LANES = "eight-lane exponential with fused multiply-adds, summed in eights"


def _norms() -> Iterator[Operation]:
    for name, function in (("rms_norm", "rms_norm"), ("layer_norm", "norm")):

        def cases(name: str = name) -> Iterator[Arguments]:
            for eps in (1e-5, 1e-6):
                for x, weight in each(name, 2):
                    yield x, weight[0], eps

        kernel = getattr(elementwise, name)
        yield Operation(
            name, cases,
            lambda x, weight, eps, kernel=kernel: run(kernel, x, weight, np.float32(eps)),
            lambda build, *a, function=function: ggml_graph.normalized(build, function, *a),
            getattr(oracles, name),
            *((2, "squares are summed in eights") if name == "layer_norm" else ()),
        )  # fmt: skip


def _elementwise() -> Iterator[Operation]:
    for name in ("add", "mul", "div"):
        yield Operation(
            name, partial(each, name, 2), partial(run, getattr(elementwise, name)),
            lambda build, *a, name=name: ggml_graph.binary(build, name, *a),
            lambda x, y, name=name: _quietly({"add": np.add, "mul": np.multiply, "div": np.divide}[name], x, y),
        )  # fmt: skip

    def scales() -> Iterator[Arguments]:
        for factor, bias in ((0.25, 0.0), (-1.7, 0.0), (0.3, 1.1), (1e30, -5.0)):
            yield from each("scale", 1, np.float32(factor), np.float32(bias))

    yield Operation(
        "scale", scales, partial(run, elementwise.scale), ggml_graph.scale,
        lambda x, factor, bias: x.astype(np.float64) * float(factor) + float(bias), 64, CONTRACTED,
    )  # fmt: skip
    yield Operation(
        "softcap", partial(each, "softcap", 1, np.float32(30)), partial(run, elementwise.softcap),
        ggml_graph.softcap, oracles.softcap,
    )  # fmt: skip


def _quietly(function: np.ufunc, x: Array, y: Array) -> Array:
    with np.errstate(all="ignore"):
        return function(x.astype(np.float64), y.astype(np.float64))


def _activations() -> Iterator[Operation]:
    differs = {"silu": (2, EIGHT_LANES), "swiglu": (2, EIGHT_LANES)}
    for name, kernel in ACTIVATIONS.items():
        yield Operation(
            name, partial(each, name, 1), partial(run, kernel),
            lambda build, x, name=name: ggml_graph.unary(build, name, x),
            partial(oracles.activation, name), *differs.get(name, ()),
        )  # fmt: skip
    yield Operation(
        "relu squared", partial(each, "relu squared", 1),
        lambda x: run(elementwise.mul, *2 * (run(ACTIVATIONS["relu"], x),)),
        lambda build, x: ggml_graph.compute(build, x.shape, lambda g: g.sqr(g.relu(g.tensor(x)))),
        lambda x: oracles.activation("relu", x) ** 2,
    )  # fmt: skip
    for name, kernel in GATED.items():
        yield Operation(
            name, partial(each, name, 2), partial(run, kernel),
            lambda build, *a, name=name: ggml_graph.binary(build, f"{name}_split", *a),
            partial(oracles.gated, name), *differs.get(name, ()),
        )  # fmt: skip
    yield Operation(
        "swiglu_oai", partial(each, "swiglu_oai", 2, np.float32(1.702), np.float32(7)), partial(run, swiglu_oai),
        ggml_graph.swiglu_oai, oracles.swiglu_oai,
    )  # fmt: skip


ROPE_SCALINGS = {
    # factors, n_ctx_orig, base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow
    "plain": (False, 0, 1e4, 1.0, 0.0, 1.0, 32.0, 1.0),
    "linear": (False, 0, 1e6, 1 / 3, 0.0, 1.0, 32.0, 1.0),
    "factors": (True, 8192, 5e5, 1.0, 0.0, 1.0, 32.0, 1.0),
    "longrope": (True, 4096, 1e4, 1.0, 0.0, 1.1902381, 32.0, 1.0),
    "yarn": (False, 4096, 1.5e5, 1 / 32, 1.0, 1.0, 32.0, 1.0),
    "yarn, partly": (False, 2048, 1e4, 0.25, 0.7, 0.9, 24.0, 2.0),
}
POSITIONS = np.array([0, 1, 2, 100, 119, 121, 511, 4095, 32767, 131071, 1000003], np.int64)


def _rope_ours(
    x: Array, positions: Array, mode: str, n_rot: int, factors: Array | None, n_ctx_orig: int, base: float,
    freq_scale: float, ext: float, attn: float, beta_fast: float, beta_slow: float,
) -> Array:  # fmt: skip
    f = np.float32
    theta_scale = powf(f(base), f(f(-2) / f(n_rot)))
    first, last = yarn_range(n_rot, n_ctx_orig, f(base), f(beta_fast), f(beta_slow)) if ext else (f(0), f(0))
    factors = np.ones(n_rot // 2, np.float32) if factors is None else factors
    table = np.empty((len(positions), n_rot // 2, 2), np.float32)
    rope_table_yarn(positions, theta_scale, f(freq_scale), factors, f(ext), f(attn), first, last, table, 0, len(x))
    flat = x.reshape(len(x), -1)
    out = np.full_like(flat, 12345.0)
    (rope_neox if mode == "neox" else rope_norm)(flat, table, x.shape[1], out, 0, len(x))
    return out.reshape(x.shape)


def _rope_cases(mode: str, scaling: str, positions: Array) -> Iterator[Arguments]:
    with_factors, *numbers = ROPE_SCALINGS[scaling]
    for kind in ("normal", "heavy", "tiny", "zero"):
        for n_rot in (2, 6, 16, 30, 64, 80, 128):
            rng = inputs.generator(mode, scaling, kind, n_rot)
            x = rows(kind, len(positions) * 2, n_rot + 6, rng).reshape(len(positions), 2, -1)
            factors = rng.uniform(1, 40, n_rot // 2).astype(np.float32) if with_factors else None
            yield (x, positions, mode, n_rot, factors, *numbers)


def _ropes() -> Iterator[Operation]:
    for mode in ggml_graph.ROPE_MODES:
        for scaling in ROPE_SCALINGS:
            yield Operation(
                f"rope {mode}, {scaling}", partial(_rope_cases, mode, scaling, POSITIONS), _rope_ours,
                ggml_graph.rope, oracles.rope, *((2.0**17, ANGLES) if "yarn" in scaling else (2, CONTRACTED)),
            )  # fmt: skip


def operations() -> Iterator[Operation]:
    """All of them."""
    for group in (_norms, _elementwise, _activations, _ropes):
        yield from group()
