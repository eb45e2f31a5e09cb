"""Decoding packed rows: against gguf-py to the bit, and blocks worked by hand."""

import gguf
import numpy as np
import pytest
from kernel_inputs import (
    ALWAYS_FINITE,
    INPUT_KINDS,
    QUANTIZED_TYPES,
    WEIGHT_KINDS,
    assert_same_bits,
    generator,
    get_rows,
    input_rows,
    packed_rows,
    quantize,
    raw_activation,
)

from minillama.errors import UnsupportedError
from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS, WEIGHT_TYPES
from minillama.kernels.reference.codebooks import codebook
from minillama.kernels.reference.float4 import doubled_e2m1
from minillama.kernels.reference.iq import even_signs
from minillama.kernels.registry import kernel_set
from minillama.kernels.scratch import BLOCK_BYTES

KERNELS = kernel_set("reference")
EVERY_TYPE = pytest.mark.parametrize("type_", WEIGHT_TYPES, ids=lambda t: t.name)


def without_gguf_py(type_, packed):
    """Q1_0 and Q2_0, which gguf-py does not decode: bits, lowest first, that are signs or numbers from -1."""
    layout = LAYOUTS[type_]
    blocks = packed.reshape(-1, layout.type_size)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").reshape(len(blocks), layout.block_size, -1)
    quants = 2.0 * bits[:, :, 0] - 1 if type_ is GGMLType.Q1_0 else bits @ [1.0, 2.0] - 1
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return (d * quants.astype(np.float32)).reshape(len(packed), -1)


def gguf_py(type_, packed):
    with np.errstate(all="ignore"):  # infinite and NaN scales are among the inputs
        if type_ in (GGMLType.Q1_0, GGMLType.Q2_0):
            return without_gguf_py(type_, packed)
        rows = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType(int(type_)))
    return np.ascontiguousarray(rows, np.float32)


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
@EVERY_TYPE
def test_equals_gguf_py(type_, kind):
    # NaNs are compared as NaNs: numpy keeps a half's signalling bit and may keep another operand's payload.
    n = 3 * max(32, LAYOUTS[type_].block_size)
    packed = packed_rows(type_, 40, n, generator(type_.name, kind), kind)
    got = get_rows(KERNELS, type_, packed, n)
    assert_same_bits(got, gguf_py(type_, packed), f"{type_.name} {kind}", block_size=LAYOUTS[type_].block_size)
    assert np.isfinite(got).all() == (kind != "not_finite" or type_ in ALWAYS_FINITE)


@pytest.mark.parametrize("name", ["Q8_1", "Q8_K"])
def test_activations_are_quants_times_a_scale(name):
    type_ = GGMLType[name]
    layout, rows = LAYOUTS[type_], [raw_activation(GGMLType[name], 9, 768, generator(name))]
    rows += [quantize(KERNELS, type_, input_rows(kind, 3, 768, generator(kind))) for kind in INPUT_KINDS]
    packed = np.concatenate(rows)
    blocks = packed.reshape(-1, layout.type_size)
    d = blocks[:, : dict(layout.fields)["d"]].copy().view(np.float32 if name == "Q8_K" else np.float16)
    at = layout.offset("qs")
    quants = blocks[:, at : at + layout.block_size].view(np.int8).astype(np.float32)
    with np.errstate(all="ignore"):
        want = (d.astype(np.float32) * quants).reshape(len(packed), 768)
    assert_same_bits(get_rows(KERNELS, type_, packed, 768), want)


@EVERY_TYPE
def test_values_of_zero_bytes_are_zero_or_minus_the_offset_times_a_zero_scale(type_):
    n = max(32, LAYOUTS[type_].block_size)
    packed = packed_rows(type_, 1, n, generator(), "zero")
    assert (get_rows(KERNELS, type_, packed, n) == 0).all()


@EVERY_TYPE
def test_rows_come_in_the_order_of_their_ids(type_):
    n = max(32, LAYOUTS[type_].block_size)
    packed = packed_rows(type_, 9, n, generator(type_.name))
    in_order = get_rows(KERNELS, type_, packed, n)
    ids = np.array([8, 0, 3, 3, 7, 0])
    assert_same_bits(get_rows(KERNELS, type_, packed, n, ids), in_order[ids])


@EVERY_TYPE
def test_only_the_asked_for_rows_are_written(type_):
    n = max(32, LAYOUTS[type_].block_size)
    packed = packed_rows(type_, 6, n, generator(type_.name))
    out = np.full((6, n), 12345.0, np.float32)
    KERNELS.get_rows[type_](packed, np.arange(6), out, np.empty(BLOCK_BYTES, np.uint8), 2, 5)
    assert_same_bits(out[2:5], get_rows(KERNELS, type_, packed, n)[2:5])
    assert (out[[0, 1, 5]] == 12345.0).all()


def half(value):
    return np.float16(value).tobytes()


def decoded(type_, block):
    return get_rows(KERNELS, type_, np.frombuffer(block, np.uint8)[None], LAYOUTS[type_].block_size)[0].tolist()


NIBBLES = bytes(j | (15 - j) << 4 for j in range(16))  # low nibbles 0 to 15, high nibbles 15 to 0


def test_q4_0_by_hand():
    # d = 0.5; value j is (q - 8) * 0.5: the low nibbles first, then the high ones.
    want = [(j - 8) * 0.5 for j in range(16)] + [(15 - j - 8) * 0.5 for j in range(16)]
    assert decoded(GGMLType.Q4_0, half(0.5) + NIBBLES) == want
    assert want[:3] + want[16:18] == [-4.0, -3.5, -3.0, 3.5, 3.0]


def test_q4_1_by_hand():
    # d = 0.5, m = -3 (field failure 33): q * 0.5 - 3, from -3 for q = 0 to 4.5 for q = 15.
    want = [j * 0.5 - 3 for j in range(16)] + [(15 - j) * 0.5 - 3 for j in range(16)]
    assert decoded(GGMLType.Q4_1, half(0.5) + half(-3) + NIBBLES) == want
    assert (want[0], want[15], want[16], want[31]) == (-3.0, 4.5, 4.5, -3.0)


def test_q5_0_by_hand():
    # Bits 0, 5, 16 and 31 of qh add 16 to those values; d = 2, value = (q - 16) * 2.
    quants = [*range(16), *range(15, -1, -1)]
    for j in (0, 5, 16, 31):
        quants[j] += 16
    high = (1 << 0 | 1 << 5 | 1 << 16 | 1 << 31).to_bytes(4, "little")
    want = [(q - 16) * 2.0 for q in quants]
    assert decoded(GGMLType.Q5_0, half(2) + high + NIBBLES) == want
    assert (want[0], want[1], want[5], want[16], want[31]) == (0.0, -30.0, 10.0, 30.0, 0.0)


def test_q5_1_by_hand():
    # d = 0.25, m = 10, qh = bits 1 and 30: value 1 is (1 + 16) * 0.25 + 10 = 14.25, value 30 (1 + 16) * 0.25 + 10.
    got = decoded(GGMLType.Q5_1, half(0.25) + half(10) + (1 << 1 | 1 << 30).to_bytes(4, "little") + NIBBLES)
    assert (got[0], got[1], got[2], got[16], got[30], got[31]) == (10.0, 14.25, 10.5, 13.75, 14.25, 10.0)


def test_q8_0_by_hand():
    # Signed bytes times d = -0.25: -128 gives 32, 127 gives -31.75.
    quants = np.array([-128, 127, -1, 0, 1, *range(27)], np.int8)
    got = decoded(GGMLType.Q8_0, half(-0.25) + quants.tobytes())
    assert got[:5] == [32.0, -31.75, 0.25, 0.0, -0.25]
    assert got[31] == 26 * -0.25


def test_q2_k_by_hand():
    # Group g has scale g and minimum 15 - g; d = 1, dmin = 0.5; every byte of qs is 0b11100100, so that bits 0-1 of it
    # are 0, bits 2-3 are 1, bits 4-5 are 2 and bits 6-7 are 3: values 0-31 of each 128 have q = 0, 32-63 q = 1, ...
    scales = bytes(g | (15 - g) << 4 for g in range(16))
    got = decoded(GGMLType.Q2_K, scales + bytes([0b11100100]) * 64 + half(1) + half(0.5))
    want = [g * ((g % 8) // 2) - 0.5 * (15 - g) for g in range(16) for _ in range(16)]
    assert got == want
    assert (got[0], got[16], got[32], got[255]) == (-7.5, -7.0, 2 - 6.5, 45.0)


def six_bit_bytes(scales, mins):
    """Q4_K's twelve bytes: 0-3 and 4-7 hold entries 0-3 and, in their top two bits, those of entries 4-7."""
    packed = bytearray(12)
    for j in range(4):
        packed[j] = scales[j] | (scales[4 + j] >> 4) << 6
        packed[4 + j] = mins[j] | (mins[4 + j] >> 4) << 6
        packed[8 + j] = (scales[4 + j] & 15) | (mins[4 + j] & 15) << 4
    return bytes(packed)


# Scale and minimum of each 32 values; those from index 4 on have bits in both of their two places.
SCALES, MINS = [1, 2, 3, 63, 17, 34, 51, 60], [63, 0, 5, 7, 33, 18, 50, 1]


def test_q4_k_by_hand():
    # d = 0.5, dmin = 0.25; every byte of qs is 0xA3: of each 64 values the first 32 have q = 3, the others q = 10.
    got = decoded(GGMLType.Q4_K, half(0.5) + half(0.25) + six_bit_bytes(SCALES, MINS) + bytes([0xA3]) * 128)
    want = [0.5 * SCALES[s] * (10 if s % 2 else 3) - 0.25 * MINS[s] for s in range(8) for _ in range(32)]
    assert got == want
    # Sub-block 4: 0.5 * 17 * 3 - 0.25 * 33 = 25.5 - 8.25; sub-block 7: 0.5 * 60 * 10 - 0.25 * 1.
    assert (got[0], got[4 * 32], got[7 * 32]) == (1.5 - 15.75, 17.25, 299.75)


def test_q5_k_by_hand():
    # As Q4_K; qh byte l is l, so bit c of l adds 16 to value 32 c + l: value 32 c + 2^c gets it for every c below 5.
    block = half(0.5) + half(0.25) + six_bit_bytes(SCALES, MINS) + bytes(range(32)) + bytes([0xA3]) * 128
    want = [
        0.5 * SCALES[c] * ((10 if c % 2 else 3) + 16 * (j >> c & 1)) - 0.25 * MINS[c]
        for c in range(8)
        for j in range(32)
    ]
    assert decoded(GGMLType.Q5_K, block) == want


def test_q3_k_by_hand():
    # Scales are stored as scale + 32 in six bits: low four in bytes 0-7 (two nibbles each), high two in bytes 8-11.
    scales = [-32, -17, -1, 0, 1, 15, 16, 31, -30, -5, 7, 9, -21, 22, 30, 2]
    packed = bytearray(12)
    for g, scale in enumerate(scales):
        packed[g % 8] |= (scale + 32 & 15) << 4 * (g // 8)
        packed[8 + g % 4] |= (scale + 32 >> 4) << 2 * (g // 4)
    # hmask byte l is l: bit p of it takes value 32 p + l from q - 4 to q. Every byte of qs
    # gives q = 0, 1, 2, 3 in turn.
    got = decoded(GGMLType.Q3_K, bytes(range(32)) + bytes([0b11100100]) * 64 + bytes(packed) + half(2))
    want = [2.0 * scales[k // 16] * ((k // 32) % 4 - (0 if (k % 32) >> (k // 32) & 1 else 4)) for k in range(256)]
    assert got == want
    assert (got[0], got[1], got[17]) == (2.0 * -32 * -4, 0.0, 0.0)


def test_q6_k_by_hand():
    # Value 128 h + 32 r + j: low four bits from ql[64 h + 32 (r % 2) + j], the low nibble for r < 2; high two bits are
    # bits 2 r and 2 r + 1 of qh[32 h + j]. All ql are 0xC5 (5 and 12) and all qh 0b11100100 (0, 1, 2, 3), so quarter 0
    # has q = 5 - 32, quarter 1 q = 5 + 16 - 32, quarter 2 q = 12 + 32 - 32, quarter 3 q = 12 + 48 - 32.
    scales = np.array([-128, 127, 1, 2, 3, 4, 5, 6, -7, 8, 9, -10, 11, 12, 13, 14], np.int8)
    got = decoded(GGMLType.Q6_K, bytes([0xC5]) * 128 + bytes([0b11100100]) * 64 + scales.tobytes() + half(0.5))
    quants = [-27, -11, 12, 28]
    assert got == [0.5 * int(scales[k // 16]) * quants[k // 32 % 4] for k in range(256)]
    assert (got[0], got[16], got[255]) == (0.5 * -128 * -27, 0.5 * 127 * -27, 0.5 * 14 * 28)


def test_q1_0_by_hand():
    # Bits 0, 9 and 127 are set: d = 0.5, the others are -0.5.
    got = decoded(GGMLType.Q1_0, half(0.5) + (1 << 0 | 1 << 9 | 1 << 127).to_bytes(16, "little"))
    assert [j for j in range(128) if got[j] == 0.5] == [0, 9, 127]
    assert got.count(-0.5) == 125


def test_q2_0_by_hand():
    # 0b11100100 is 0, 1, 2, 3 from the lowest bits on, less 1.
    assert decoded(GGMLType.Q2_0, half(2) + bytes([0b11100100]) * 16) == [-2.0, 0.0, 2.0, 4.0] * 16


def ternary_byte(digits):
    """The smallest byte whose fraction of 256 begins with these base-3 digits."""
    number = sum(digit * 3 ** (len(digits) - 1 - i) for i, digit in enumerate(digits))
    return -(-number * 256 // 3 ** len(digits))


def test_tq1_0_by_hand():
    # Bytes 0-31 hold values 0-159, a digit for each 32; 32-47 hold 160-239, for each 16; 48-51 240-255, for each 4.
    block = bytes([ternary_byte([0, 1, 2, 0, 1])] * 32 + [ternary_byte([2, 2, 0, 1, 1])] * 16)
    block += bytes([ternary_byte([1, 0, 2, 2])] * 4) + half(0.5)
    digits = [d for d in (0, 1, 2, 0, 1) for _ in range(32)] + [d for d in (2, 2, 0, 1, 1) for _ in range(16)]
    digits += [d for d in (1, 0, 2, 2) for _ in range(4)]
    assert decoded(GGMLType.TQ1_0, block) == [0.5 * (d - 1) for d in digits]


def test_tq2_0_by_hand():
    # Byte l of each 32 holds values l, l + 32, l + 64 and l + 96 of its 128.
    got = decoded(GGMLType.TQ2_0, bytes([0b10000110]) * 32 + bytes([0b00011001]) * 32 + half(2))
    assert got == [2.0 * (q - 1) for q in (2, 1, 0, 2, 1, 2, 1, 0) for _ in range(32)]


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def test_mxfp4_by_hand():
    # 127 is 2^0; 0 is 2^-127, whose half is subnormal, and 255 is 2^128, of which ggml takes the half.
    for exponent, scale in ((127, 1.0), (130, 8.0), (0, 2.0**-127), (1, 2.0**-126), (2, 2.0**-125), (254, 2.0**127)):
        got = decoded(GGMLType.MXFP4, bytes([exponent]) + NIBBLES)
        with np.errstate(over="ignore"):
            assert got == [float(np.float32(v * scale)) for v in E2M1 + E2M1[::-1]], exponent
    assert decoded(GGMLType.MXFP4, bytes([255]) + NIBBLES)[1] == 2.0**127


def test_nvfp4_by_hand():
    # Scales of four groups of 16: 0x38 is 1, 0x4C is 2^2 * 1.5, 0x03 is 3/8 of 2^-6, 0x7F (NaN) is taken for zero.
    group = bytes(j | (15 - j) << 4 for j in range(8))
    got = decoded(GGMLType.NVFP4, bytes([0x38, 0x4C, 0x03, 0x7F]) + group * 4)
    values = E2M1[:8] + E2M1[:7:-1]
    assert got == [v * scale for scale in (1.0, 6.0, 3 / 512, 0.0) for v in values]


def test_float4_and_signs_are_gguf_pys_tables():
    # They are computed, as they have a rule.
    assert [int(doubled_e2m1(np.int32(code))) for code in range(16)] == list(gguf.quants.MXFP4.kvalues)
    assert bytes(int(even_signs(np.uint32(i))) for i in range(128)) == gguf.quants.IQ2_XXS.ksigns


def test_another_codebook_is_refused(monkeypatch):
    monkeypatch.setattr(gguf.quants.IQ4_NL, "kvalues", (*range(16),))
    with pytest.raises(UnsupportedError, match=r"gguf's codebook of IQ4_NL has the digest \w{16}, ggml's has 61aa"):
        codebook.__wrapped__("IQ4_NL")


@pytest.mark.parametrize("type_", QUANTIZED_TYPES, ids=lambda t: t.name)
def test_every_byte_of_a_block_matters(type_):
    # A decoder that misses part of a block (field failure 36) or reads it elsewhere (34) leaves a byte without effect.
    n = LAYOUTS[type_].block_size
    packed = packed_rows(type_, 1, n, generator(type_.name))
    reference = get_rows(KERNELS, type_, packed, n)
    for at in range(packed.shape[1]):
        changed = packed.copy()
        changed[0, at] ^= 0x80 if type_ is GGMLType.TQ1_0 else 1  # there the lowest bit may be beyond the last digit
        assert not np.array_equal(get_rows(KERNELS, type_, changed, n), reference), f"byte {at}"


def test_a_q4_1_row_is_as_near_as_its_bits_allow():
    # Field failure 34: nibbles read from the wrong bytes keep the shape and ruin the values.
    x = generator("q4_1").standard_normal((8, 64)).astype(np.float32)
    packed = gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q4_1)
    error = np.abs(get_rows(KERNELS, GGMLType.Q4_1, packed, 64) - x).max()
    step = (x.max() - x.min()) / 15
    assert error <= step  # half a step of a block, and the two roundings to half
