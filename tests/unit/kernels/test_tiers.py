"""Tiers: which is taken, what it is compiled to, and that all of this machine's give the reference's bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from minillama.errors import InvalidInputError
from minillama.gguf import GGMLType
from minillama.kernels import tiers
from minillama.kernels.simd.dots import dot_bytes_code, dot_pairs_code, pair_sums_code
from tests.tiny_models import TinyModel

TYPES = (
    "Q4_0",
    "Q4_K",
    "F16",
    "BF16",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
)
AVX512 = dict.fromkeys(("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni"), True)


@pytest.mark.parametrize(
    ("machine", "features", "best"),
    [
        ("x86_64", AVX512, "avx512-vnni"),
        ("x86_64", {**AVX512, "avx512vnni": False}, "avx2"),
        ("AMD64", {"avx2": True, "fma": True, "f16c": True, "avxvnni": True}, "avx2-vnni"),
        ("x86_64", {"avx2": True, "fma": True}, "generic"),
        ("aarch64", {"dotprod": True}, "neon-dotprod"),
        ("aarch64", {"neon": True}, "generic"),
        ("riscv64", {}, "generic"),
    ],
)
def test_the_best_tier_of_a_machine(machine: str, features: dict[str, bool], best: str) -> None:
    assert next(tier.name for tier in tiers.TIERS if tier.is_available(machine, features)) == best


def test_a_tier_leaves_no_feature_of_a_better_one() -> None:
    everything = {**AVX512, "avxvnni": True, "gfni": True, "avx512vbmi": True, "sse4.2": True, "dotprod": True}
    left = {tier.name: {name for name, has in tier.features(everything).items() if has} for tier in tiers.TIERS}
    assert left["avx512-vnni"] == set(everything)
    assert left["avx2-vnni"] == {"avx2", "fma", "f16c", "avxvnni", "sse4.2", "dotprod"}
    assert left["avx2"] == {"avx2", "fma", "f16c", "sse4.2", "dotprod"}
    assert left["generic"] == {"sse4.2"}


def test_an_unknown_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tiers.VARIABLE, "avx1024")
    with pytest.raises(InvalidInputError, match=r"MINILLAMA_TIER is 'avx1024', this machine has .*generic"):
        tiers.current_tier.__wrapped__()


def results(tier: str, folder: Path) -> list[str]:
    command = [sys.executable, str(Path(__file__).with_name("tier_run.py")), str(folder)]
    done = subprocess.run(
        command, env={**os.environ, tiers.VARIABLE: tier}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.tiers
@pytest.mark.parametrize("tier", [tier.name for tier in tiers.available_tiers()])
def test_a_tier_gives_the_plain_kernels_bits(tier: str, tmp_path: Path) -> None:
    for name in TYPES:
        TinyModel(n_layer=1, matrix_type=GGMLType[name]).write(tmp_path / f"{name}.gguf")
    assert results(tier, tmp_path) == [tier, *(f"{name} True" for name in sorted(TYPES))]


def assembly(triple: str, features: str, code: object, operand: ir.Type) -> str:
    """What LLVM makes of a dot of vectors of 16 totals on some other processor."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    totals = ir.VectorType(ir.IntType(32), 16)
    module = ir.Module("dot")
    module.triple = triple
    function = ir.Function(module, ir.FunctionType(totals, [totals, operand, operand]), "dot")
    builder = ir.IRBuilder(function.append_basic_block())
    names = {name.strip("+") for name in features.split(",")}
    result = code(builder, *function.args, has=lambda *wanted: names.issuperset(wanted))  # type: ignore[operator]
    builder.ret(result)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    machine = llvm.Target.from_triple(triple).create_target_machine(features=features, opt=3)
    return machine.emit_assembly(parsed)


BYTES, PAIRS = ir.VectorType(ir.IntType(8), 64), ir.VectorType(ir.IntType(16), 32)
ARM, X86 = "aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu"


def added_pair_sums(builder: ir.IRBuilder, total: ir.Value, *operands: ir.Value, has: object) -> ir.Value:
    return builder.add(total, builder.bitcast(pair_sums_code(builder, *operands, has=has), total.type))


@pytest.mark.parametrize(
    ("triple", "features", "code", "operand", "instruction", "times"),
    [
        (ARM, "+dotprod", dot_bytes_code, BYTES, "sdot", 8),
        (ARM, "+dotprod,+i8mm", dot_bytes_code, BYTES, "usdot", 4),
        (X86, "+avx2", dot_bytes_code, BYTES, "vpmaddwd", 4),
        (X86, "+avx2,+avxvnni", dot_bytes_code, BYTES, "vpdpbusd", 2),
        (X86, "+avx2", dot_pairs_code, PAIRS, "vpmaddwd", 2),
        (X86, "+avx2,+avx512f,+avx512bw,+avx512vnni", dot_bytes_code, BYTES, "vpdpbusd", 1),
        (X86, "+avx2", added_pair_sums, BYTES, "vpmaddubsw", 2),
        (X86, "+avx2,+avx512f,+avx512bw", added_pair_sums, BYTES, "vpmaddubsw", 1),
    ],
    ids=["neon", "neon-i8mm", "avx2", "avx2-vnni", "avx2-pairs", "avx512-vnni", "avx2-pair-sums", "avx512-pair-sums"],
)
def test_the_dot_instruction_is_used(
    triple: str, features: str, code: object, operand: ir.Type, instruction: str, times: int
) -> None:
    lines = [line.split() for line in assembly(triple, features, code, operand).splitlines()]
    assert sum(instruction in line[:2] for line in lines) == times
