"""Decoding packed rows: against gguf-py to the bit, and blocks worked by hand."""

import gguf
import numpy as np
import pytest
from kernel_inputs import QUANTIZED_TYPES, WEIGHT_KINDS, assert_same_bits, generator, get_rows, packed_rows

from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS, WEIGHT_TYPES
from minillama.kernels.registry import kernel_set
from minillama.kernels.scratch import BLOCK_BYTES

KERNELS = kernel_set("reference")
EVERY_TYPE = pytest.mark.parametrize("type_", WEIGHT_TYPES, ids=lambda t: t.name)


def gguf_py(type_, packed):
    with np.errstate(all="ignore"):  # infinite and NaN scales are among the inputs
        rows = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType(int(type_)))
    return np.ascontiguousarray(rows, np.float32)


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
@EVERY_TYPE
def test_equals_gguf_py(type_, kind):
    # NaNs are compared as NaNs: numpy keeps a half's signalling bit and may keep another operand's payload.
    n = 3 * max(32, LAYOUTS[type_].block_size)
    packed = packed_rows(type_, 40, n, generator(type_.name, kind), kind)
    got = get_rows(KERNELS, type_, packed, n)
    assert_same_bits(got, gguf_py(type_, packed), f"{type_.name} {kind}")
    assert np.isfinite(got).all() == (kind != "not_finite")


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


@pytest.mark.parametrize("type_", QUANTIZED_TYPES, ids=lambda t: t.name)
def test_every_byte_of_a_block_matters(type_):
    # A decoder that misses part of a block (field failure 36) or reads it elsewhere (34) leaves a byte without effect.
    n = LAYOUTS[type_].block_size
    packed = packed_rows(type_, 1, n, generator(type_.name))
    reference = get_rows(KERNELS, type_, packed, n)
    for at in range(packed.shape[1]):
        changed = packed.copy()
        changed[0, at] ^= 1
        assert not np.array_equal(get_rows(KERNELS, type_, changed, n), reference), f"byte {at}"


def test_a_q4_1_row_is_as_near_as_its_bits_allow():
    # Field failure 34: nibbles read from the wrong bytes keep the shape and ruin the values.
    x = generator("q4_1").standard_normal((8, 64)).astype(np.float32)
    packed = gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q4_1)
    error = np.abs(get_rows(KERNELS, GGMLType.Q4_1, packed, 64) - x).max()
    step = (x.max() - x.min()) / 15
    assert error <= step  # half a step of a block, and the two roundings to half
