"""Inputs that can hurt, ways to run the kernels on them, and the comparison of bits; shared by all tests of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels.jit import Kernel
from minillama.kernels.layouts import LAYOUTS, WEIGHT_TYPES
from minillama.kernels.reference.attention import BLOCK
from minillama.kernels.registry import KernelSet
from minillama.kernels.scratch import BLOCK_BYTES, DOT_BYTES

QUANTIZED_TYPES = tuple(t for t in WEIGHT_TYPES if LAYOUTS[t].block_size > 1)
ACTIVATION_TYPES = tuple(dict.fromkeys(LAYOUTS[t].activation for t in WEIGHT_TYPES))
INPUT_KINDS = ("normal", "heavy", "tiny", "subnormal", "huge", "zero", "one_hot", "alternating")
FINITE_WEIGHTS = ("random", "any_scale", "zero", "low", "high")
WEIGHT_KINDS = (*FINITE_WEIGHTS, "not_finite")

ALWAYS_FINITE = (GGMLType.NVFP4,)  # its scales have no pattern for infinity or NaN

_BYTE_FILL = 0x5A
_SCALE_FIELDS = ("d", "dmin", "m", "e")
_FILLS = {"zero": 0x00, "low": 0x00, "high": 0xFF}


def generator(*key: object) -> np.random.Generator:
    """A random generator that depends on the test's parameters only."""
    return np.random.default_rng(list("|".join(map(str, key)).encode()))


def input_rows(kind: str, n_rows: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """float32 [n_rows, n] of one of ``INPUT_KINDS``."""
    x = rng.standard_normal((n_rows, n))
    rows = np.arange(n_rows)
    if kind == "heavy":
        x = rng.standard_t(1.2, (n_rows, n)) * 4
    elif kind in ("tiny", "subnormal", "huge"):
        x *= {"tiny": 1e-30, "subnormal": 1e-40, "huge": 1e30}[kind]
    elif kind == "zero":
        x = np.where(x < 0, -0.0, 0.0)
    elif kind == "one_hot":
        x = np.zeros((n_rows, n))
        x[rows, (7 + 37 * rows) % n] = np.where(rows % 2, -3.7, 2.9)
    elif kind == "alternating":  # every quant is +-127: integer sums reach their limits
        x = np.where((np.arange(n)[None, :] + rows[:, None]) % 2, -1.5, 1.5)
        x[::3] = 1.5
    return x.astype(np.float32)


def as_weight(packed: np.ndarray) -> np.ndarray:
    """The array as the kernels get it: weights are read-only views of a file, which numba compiles for apart."""
    view = packed.view()
    view.flags.writeable = False
    return view


def packed_rows(type_: GGMLType, n_rows: int, n: int, rng: np.random.Generator, kind: str = "random") -> np.ndarray:
    """uint8 [n_rows, row_bytes] of one of ``WEIGHT_KINDS``: random or constant bytes around scales drawn apart.

    Random bytes alone would make one scale in 32 infinite or NaN, which hides every other value of the row.
    """
    layout = LAYOUTS[type_]
    if layout.block_size == 1:
        return as_weight(_float_rows(type_, (n_rows, n), rng, kind))
    shape = n_rows, n // layout.block_size
    blocks = rng.integers(0, 256, (*shape, layout.type_size), np.uint8)
    if kind in _FILLS:
        blocks[:] = _FILLS[kind]
    if kind == "zero":
        return as_weight(blocks.reshape(n_rows, -1))
    for field, size in layout.fields:
        if field in _SCALE_FIELDS:
            at = layout.offset(field)
            blocks[:, :, at : at + size] = _scales_of(type_, shape, rng, kind)
    if type_ is GGMLType.IQ1_M:  # a quarter of the scale in the top bits of each 16-bit integer
        at, scales = layout.offset("scales"), _scales(shape, rng, kind)
        for quarter in range(4):
            top = (scales >> 4 * quarter & 15).astype(np.uint8) << 4
            blocks[:, :, at + 2 * quarter + 1] = blocks[:, :, at + 2 * quarter + 1] & 15 | top
    return as_weight(blocks.reshape(n_rows, -1))


def _scales_of(type_: GGMLType, shape: tuple[int, int], rng: np.random.Generator, kind: str) -> np.ndarray:
    """Bytes of a scale field: halves for most types, exponents for MXFP4, four 8-bit floats for NVFP4."""
    if type_ is GGMLType.MXFP4:  # 12 times 2^(252 - 128) is the largest value that is finite
        exponents = rng.integers(*{"any_scale": (0, 253), "not_finite": (253, 256)}.get(kind, (116, 129)), shape)
        return exponents.astype(np.uint8)[:, :, None]
    if type_ is GGMLType.NVFP4:
        special = rng.choice(np.array([0x00, 0x7F, 0x80, 0xFF], np.uint8), (*shape, 4))
        usual = rng.integers(*((0, 256) if kind == "any_scale" else (0x20, 0x58)), (*shape, 4), np.uint8)
        return special if kind == "not_finite" else usual
    return _scales(shape, rng, kind).view(np.uint8).reshape(*shape, 2)


def _scales(shape: tuple[int, int], rng: np.random.Generator, kind: str) -> np.ndarray:
    """Bits of halves: of ordinary size, any finite ones, or one in two infinite or NaN; of either sign."""
    if kind == "any_scale":
        return (rng.integers(0, 0x7C00, shape) | rng.integers(0, 2, shape) << 15).astype(np.uint16)
    moderate = (rng.uniform(0.25, 1, shape) * 2.0 ** rng.integers(-10, 2, shape) * rng.choice([-1, 1], shape)).astype(
        np.float16
    )
    if kind == "not_finite":
        special = rng.choice(np.array([0x7C00, 0xFC00, 0x7E00, 0xFE00, 0x7C01, 0xFD55], np.uint16), shape)
        return np.where(rng.integers(0, 2, shape) == 1, special, moderate.view(np.uint16))
    return moderate.view(np.uint16)


def _float_rows(type_: GGMLType, shape: tuple[int, int], rng: np.random.Generator, kind: str) -> np.ndarray:
    """Rows of an unquantized type."""
    size = LAYOUTS[type_].type_size
    unsigned = {2: np.uint16, 4: np.uint32}[size]
    if kind in ("zero", "random"):
        values = rng.standard_normal(shape).astype(np.float32) * np.float32(kind == "random")
        bits = {
            GGMLType.F32: values.view(np.uint32),
            GGMLType.F16: values.astype(np.float16).view(np.uint16),
            GGMLType.BF16: (values.view(np.uint32) >> 16).astype(np.uint16),
        }[type_]
        return np.ascontiguousarray(bits).view(np.uint8)
    exponent = {GGMLType.F32: 0x7F800000, GGMLType.F16: 0x7C00, GGMLType.BF16: 0x7F80}[type_]
    top = 1 << (8 * size - 1)
    bits = rng.integers(0, exponent, shape) | rng.integers(0, 2, shape) * top
    if kind in ("low", "high"):  # the largest finite values: products and sums overflow
        bits[:] = exponent - 1 + (top if kind == "low" else 0)
    if kind == "not_finite":
        bits[:, ::3] = exponent | rng.integers(0, 3, bits[:, ::3].shape) | rng.integers(0, 2, bits[:, ::3].shape) * top
    return np.ascontiguousarray(bits.astype(unsigned)).view(np.uint8)


def raw_activation(type_: GGMLType, n_rows: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """Converted rows of random bytes: unlike those that quantizing gives, their quants include -128.

    Of three rows of Q8_K, whose scales are float32, the second has the smallest floats and the third the largest.
    """
    layout = LAYOUTS[type_]
    if layout.block_size == 1:
        return packed_rows(type_, n_rows, n, rng).copy()
    blocks = rng.integers(0, 256, (n_rows, n // layout.block_size, layout.type_size), np.uint8)
    single = layout.type is GGMLType.Q8_K
    for field in ("d", "s"):
        if field in dict(layout.fields):
            scale = rng.uniform(-1, 1, blocks.shape[:2])
            if single:
                scale *= 2.0 ** np.array([0, -135, 110])[np.arange(n_rows) % 3][:, None]
            scale = scale.astype(np.float32 if single else np.float16)
            at = layout.offset(field)
            size = scale.itemsize
            blocks[:, :, at : at + size] = scale.view(np.uint8).reshape(*blocks.shape[:2], size)
    if single:
        set_sums(blocks)
    return blocks.reshape(n_rows, -1)


def set_sums(blocks: np.ndarray) -> None:
    """Make the sums of 16 in blocks of Q8_K, uint8 [n_rows, n_blocks, type_size], those of their quants."""
    layout = LAYOUTS[GGMLType.Q8_K]
    quants = blocks[:, :, layout.offset("qs") : layout.offset("bsums")].view(np.int8)
    sums = quants.reshape(*blocks.shape[:2], 16, 16).sum(-1, dtype=np.int16)
    blocks[:, :, layout.offset("bsums") :] = sums.view(np.uint8).reshape(*blocks.shape[:2], 32)


def get_rows(
    kernels: KernelSet, type_: GGMLType, packed: np.ndarray, n: int, ids: np.ndarray | None = None
) -> np.ndarray:
    """Rows of a packed weight, decoded; all of them in order without ``ids``."""
    ids = np.arange(len(packed)) if ids is None else np.asarray(ids, np.int64)
    out = np.full((len(ids), n), 12345.0, np.float32)
    kernels.get_rows[type_](as_weight(packed), ids, out, np.empty(BLOCK_BYTES, np.uint8), 0, len(ids))
    return out


def quantize(kernels: KernelSet, type_: GGMLType, x: np.ndarray) -> np.ndarray:
    """Rows converted to an activation type; what the kernel does not write would show as 0x5A."""
    out = np.full((len(x), kernels.activation_bytes(type_, x.shape[1])), _BYTE_FILL, np.uint8)
    kernels.quantize[type_](np.ascontiguousarray(x), out, 0, len(x))
    return out


def _laid_out_32(type_: GGMLType, packed: np.ndarray, n: int) -> np.ndarray:
    layout, n_blocks = LAYOUTS[type_], n // 32
    places = (n_blocks + 30) // 16 * 16
    at, d_at = layout.offset("qs"), layout.offset("d")
    blocks = np.resize(
        packed.reshape(len(packed), n_blocks, -1).swapaxes(0, 1), (places, len(packed), layout.type_size)
    )
    blocks = np.ascontiguousarray(blocks.swapaxes(0, 1))  # the row begins again after its last block
    quants = blocks[:, :, at:]
    parts = [quants[:, :, :16], quants[:, :, 16:], blocks[:, :, d_at : d_at + 2].copy().view(np.float16)]
    parts[2] = parts[2].astype(np.float32)
    if type_ is GGMLType.Q8_1:
        s_at = layout.offset("s")
        parts.append(blocks[:, :, s_at : s_at + 2].copy().view(np.float16).astype(np.float32))
    else:
        sums = quants.view(np.int8).sum(-1, dtype=np.int32)
        parts += [-offset * sums for offset in (8, 16, 128)]
    return np.concatenate([np.ascontiguousarray(p).reshape(len(packed), -1).view(np.uint8) for p in parts], axis=1)


def _laid_out_256(packed: np.ndarray, n: int) -> np.ndarray:
    layout, n_rows = LAYOUTS[GGMLType.Q8_K], len(packed)
    blocks = packed.reshape(n_rows, n // 256, layout.type_size)
    at, sums_at = layout.offset("qs"), layout.offset("bsums")
    quants = blocks[:, :, at:sums_at]
    in_lanes = quants.reshape(n_rows, -1, 4, 8).swapaxes(2, 3)
    bsums = np.ascontiguousarray(blocks[:, :, sums_at:])
    sums = bsums.view(np.int16).reshape(n_rows, -1, 2).sum(-1, dtype=np.int16)
    parts = [in_lanes, in_lanes + np.uint8(128), bsums, sums, blocks[:, :, :4]]
    out = np.concatenate([np.ascontiguousarray(p).reshape(n_rows, -1).view(np.uint8) for p in parts], axis=1)
    return np.pad(out, ((0, 0), (0, -out.shape[1] % 64)), constant_values=_BYTE_FILL)


def _laid_out_floats(type_: GGMLType, packed: np.ndarray, n: int) -> np.ndarray:
    if type_ is GGMLType.BF16:
        bits = np.pad(packed.view(np.uint16).astype(np.uint32) << 16, ((0, 0), (0, -n % 16)))
        floats = bits.view(np.float32)
        size = np.abs(floats)
        is_ordinary = ((size == 0) | ((size >= 2.0**-60) & (size <= 2.0**60))).all(-1, keepdims=True)
        parts = floats, floats.astype(np.float64), is_ordinary.astype(np.float64)
        return np.concatenate([part.view(np.uint8) for part in parts], axis=1)
    values = packed.view(np.float32) if type_ is GGMLType.F32 else packed.view(np.float16).astype(np.float64)
    return np.pad(values, ((0, 0), (0, -n % 16))).view(np.uint8)


def laid_out(kernels: KernelSet, type_: GGMLType, packed: np.ndarray, n: int) -> np.ndarray:
    """Rows of an activation type as ggml packs them, in the backend's own layout."""
    if kernels.name == "reference":
        return packed
    if LAYOUTS[type_].block_size == 1:
        return _laid_out_floats(type_, packed, n)
    return _laid_out_256(packed, n) if type_ is GGMLType.Q8_K else _laid_out_32(type_, packed, n)


def mul_mat(
    kernels: KernelSet,
    type_: GGMLType,
    weight: np.ndarray,
    activation: np.ndarray,
    n: int,
    rows: tuple[int, int] | None = None,
) -> np.ndarray:
    """Product with rows converted as ggml packs them, for a range of the weight's rows; the others stay 12345."""
    start, stop = rows or (0, len(weight))
    out = np.full((len(activation), len(weight)), 12345.0, np.float32)
    scratch = np.full(kernels.mul_mat_scratch(type_, n, len(activation)), 0xA5, np.uint8)
    converted = laid_out(kernels, LAYOUTS[type_].activation, activation, n)
    kernels.mul_mat[type_](as_weight(weight), converted, n, out, scratch, start, stop)
    return out


def dots(
    table: Mapping[GGMLType, Kernel], type_: GGMLType, weight: np.ndarray, activation: np.ndarray, n: int
) -> np.ndarray:
    """The dot of every converted row with every row of a weight, by the kernels of ``DOT`` or ``DOT_FUSED``."""
    scratch = np.full(DOT_BYTES, 0xA5, np.uint8)
    kernel, rows = table[type_], as_weight(weight)
    return np.array([[kernel(row, a, n, scratch) for row in rows] for a in activation], np.float32)


@dataclass
class AttentionCase:
    """Sequences in a block cache with shuffled tables, and queries at some of their positions.

    ``k`` and ``v`` are lists, a sequence each, of float32 [length, n_head_kv * dim].
    """

    q: np.ndarray
    k: list[np.ndarray]
    v: list[np.ndarray]
    table: np.ndarray
    sequence: np.ndarray
    position: np.ndarray
    n_head: int
    n_head_kv: int
    head_dim: int
    value_dim: int
    scale: np.float32

    def cache(self, kernels: KernelSet, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """Blocks that hold the keys and values; unused slots are NaN, so that reading one shows."""
        n_blocks = int(self.table.max()) + 1
        nothing = np.float32(np.nan) if dtype == np.float32 else np.uint16(0x7E00)
        keys = np.full((n_blocks, self.n_head_kv, self.head_dim, BLOCK), nothing, dtype)
        values = np.full((n_blocks, self.n_head_kv, BLOCK, self.value_dim), nothing, dtype)
        for i, (k, v) in enumerate(zip(self.k, self.v, strict=True)):
            place = self.table, np.full(len(k), i), np.arange(len(k))
            kernels.store_kv[dtype](k, v, *place, keys, values, 0, len(k))
        return keys, values

    def run(self, kernels: KernelSet, dtype: type, items: tuple[int, int] | None = None) -> np.ndarray:
        """Attention of every query, or of a range of the backend's items; the others stay 12345."""
        kind = np.dtype(dtype)
        keys, values = self.cache(kernels, kind)
        out = np.full((len(self.q), self.n_head * self.value_dim), 12345.0, np.float32)
        n_kv = int(self.position.max()) + 1
        scratch = np.full(kernels.attention_scratch(n_kv, self.head_dim), 0xA5, np.uint8)
        start, stop = items or (0, kernels.attention_items(len(self.q), self.n_head))
        kernels.attention[kind](
            self.q, keys, values, self.table, self.sequence, self.position, self.n_head, self.scale,
            out, scratch, start, stop,
        )  # fmt: skip
        return out


def attention_case(
    rng: np.random.Generator,
    lengths: tuple[int, ...],
    *,
    n_head: int = 2,
    n_head_kv: int = 1,
    head_dim: int = 16,
    value_dim: int | None = None,
    positions: tuple[tuple[int, int], ...] | None = None,
    spread: float = 1.0,
) -> AttentionCase:
    """Random sequences of the given lengths; queries at ``positions`` (sequence, position), else at each end."""
    value_dim = value_dim or head_dim
    positions = positions or tuple((i, length - 1) for i, length in enumerate(lengths))
    per_sequence = -(-max(lengths) // BLOCK)
    table = rng.permutation(len(lengths) * per_sequence).reshape(len(lengths), per_sequence)

    def rows(count: int, width: int) -> np.ndarray:
        return (rng.standard_normal((count, width)) * spread).astype(np.float32)

    return AttentionCase(
        q=rows(len(positions), n_head * head_dim),
        k=[rows(length, n_head_kv * head_dim) for length in lengths],
        v=[rows(length, n_head_kv * value_dim) for length in lengths],
        table=table.astype(np.int64),
        sequence=np.array([s for s, _ in positions], np.int64),
        position=np.array([p for _, p in positions], np.int64),
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        value_dim=value_dim,
        scale=np.float32(1 / np.sqrt(head_dim)),
    )


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Distance in steps of float32, over zero as well."""

    def ordered(x: np.ndarray) -> np.ndarray:
        bits = x.view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)

    return np.abs(ordered(got) - ordered(want))


def same_bits(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Where bits are equal; any NaN equals any other (processors differ in which operand's payload they keep)."""
    if got.dtype != np.float32:
        return got == want
    return (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))


def assert_same_bits(got: np.ndarray, want: np.ndarray, label: object = "", *, block_size: int | None = None) -> None:
    """Fail with the number of differences, the first and the worst one, and the block in which they are."""
    got, want = np.ascontiguousarray(got), np.ascontiguousarray(want)
    assert got.dtype == want.dtype, f"{label}: {got.dtype} against {want.dtype}"
    assert got.shape == want.shape, f"{label}: shape {got.shape} against {want.shape}"
    wrong = np.argwhere(~same_bits(got, want))
    if not len(wrong):
        return
    report = [f"{label}: {len(wrong)} of {got.size} differ"]
    worst = wrong[0]
    if got.dtype == np.float32:
        worst = max(wrong, key=lambda at: int(ulps(got[tuple(at)], want[tuple(at)])))
    for what, index in (("first", wrong[0]), ("worst", worst)):
        at = tuple(int(i) for i in index)
        distance = f", {ulps(got[at], want[at])} ulps" if got.dtype == np.float32 else ""
        block = "" if block_size is None else f" (block {at[-1] // block_size})"
        report.append(f"{what} at {at}{block}: {got[at]!r}, {want[at]!r} wanted{distance}")
    raise AssertionError("; ".join(report))
