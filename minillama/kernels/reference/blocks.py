"""Every quantized block type and the function that takes it apart, by how it decodes. See ``reference.unpack``."""

from __future__ import annotations

from minillama.gguf.constants import GGMLType
from minillama.kernels.reference import float4, iq, ternary, unpack

# Decoded as quants * scale + minimum.
ONE_SCALE = {
    GGMLType.Q1_0: ternary.unpack_q1_0,
    GGMLType.Q2_0: ternary.unpack_q2_0,
    GGMLType.Q4_0: unpack.unpack_q4_0,
    GGMLType.Q4_1: unpack.unpack_q4_1,
    GGMLType.Q5_0: unpack.unpack_q5_0,
    GGMLType.Q5_1: unpack.unpack_q5_1,
    GGMLType.Q8_0: unpack.unpack_q8_0,
    GGMLType.Q8_1: unpack.unpack_q8_1,
    GGMLType.IQ4_NL: iq.unpack_iq4_nl,
    GGMLType.MXFP4: float4.unpack_mxfp4,
}
# Decoded as ((scale * scales) * factor) * quants - (minimum * mins), with a factor of 1 if none is named in FACTOR.
GROUP_SCALES = {
    GGMLType.NVFP4: float4.unpack_nvfp4,
    GGMLType.TQ1_0: ternary.unpack_tq1_0,
    GGMLType.TQ2_0: ternary.unpack_tq2_0,
    GGMLType.Q2_K: unpack.unpack_q2_k,
    GGMLType.Q3_K: unpack.unpack_q3_k,
    GGMLType.Q4_K: unpack.unpack_q4_k,
    GGMLType.Q5_K: unpack.unpack_q5_k,
    GGMLType.Q6_K: unpack.unpack_q6_k,
    GGMLType.Q8_K: unpack.unpack_q8_k,
    GGMLType.IQ1_S: iq.unpack_iq1_s,
    GGMLType.IQ1_M: iq.unpack_iq1_m,
    GGMLType.IQ2_XXS: iq.unpack_iq2_xxs,
    GGMLType.IQ2_XS: iq.unpack_iq2_xs,
    GGMLType.IQ2_S: iq.unpack_iq2_s,
    GGMLType.IQ3_XXS: iq.unpack_iq3_xxs,
    GGMLType.IQ3_S: iq.unpack_iq3_s,
    GGMLType.IQ4_XS: iq.unpack_iq4_xs,
}
UNPACK = {**ONE_SCALE, **GROUP_SCALES}
