"""Which vector instructions kernels are compiled for.

A tier is a set of processor features. The best that the machine has is taken, or the one that ``MINILLAMA_TIER`` names;
LLVM is then told that there are no others, and the operations of ``kernels.simd`` ask the tier, never the machine. All
tiers give the same bits.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass

import llvmlite.binding

from minillama.errors import InvalidInputError

VARIABLE = "MINILLAMA_TIER"


@dataclass(frozen=True)
class Tier:
    """A set of features of one kind of processor.

    Attributes
    ----------
    name
        As in ``MINILLAMA_TIER``.
    needs
        LLVM's names of the features without which it is not available.
    without
        Beginnings of the names of features that it leaves unused.
    machines
        Processors it is for, as ``platform.machine()`` names them; empty for all.
    """

    name: str
    needs: tuple[str, ...]
    without: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()

    def is_available(self, machine: str, features: Mapping[str, bool]) -> bool:
        """Whether a machine of these features can run it."""
        return (not self.machines or machine in self.machines) and all(features.get(name) for name in self.needs)

    def features(self, features: Mapping[str, bool]) -> dict[str, bool]:
        """What is left of a machine's features."""
        return {name: has and not name.startswith(self.without or ("\0",)) for name, has in features.items()}


_X86, _ARM = ("x86_64", "AMD64"), ("aarch64", "arm64")
_AVX512 = ("avx512", "avx10", "amx", "gfni")
_AVX = (*_AVX512, "avx", "fma", "f16c", "xop", "vaes", "vpclmul")
# The best first.
TIERS = (
    Tier("avx512-vnni", ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni"), machines=_X86),
    Tier("avx2-vnni", ("avx2", "fma", "f16c", "avxvnni"), without=_AVX512, machines=_X86),
    Tier("avx2", ("avx2", "fma", "f16c"), without=(*_AVX512, "avxvnni"), machines=_X86),
    Tier("neon-dotprod", ("dotprod",), machines=_ARM),
    Tier("generic", (), without=(*_AVX, "dotprod", "i8mm", "sve", "sme", "fullfp16", "bf16")),
)


@functools.cache
def host_features() -> dict[str, bool]:
    """What LLVM knows of this machine's processor."""
    return dict(llvmlite.binding.get_host_cpu_features())


def available_tiers() -> tuple[Tier, ...]:
    """Tiers that this machine can run, the best first."""
    return tuple(tier for tier in TIERS if tier.is_available(platform.machine(), host_features()))


@functools.cache
def current_tier() -> Tier:
    """The tier that kernels are compiled for.

    Raises
    ------
    InvalidInputError
        ``MINILLAMA_TIER`` names none that this machine has.
    """
    tiers = {tier.name: tier for tier in available_tiers()}
    name = os.environ.get(VARIABLE)
    if not name:
        return next(iter(tiers.values()))
    if name not in tiers:
        raise InvalidInputError(f"{VARIABLE} is {name!r}, this machine has {', '.join(tiers)}")
    return tiers[name]


@functools.cache
def features() -> dict[str, bool]:
    """The features that kernels may use."""
    return current_tier().features(host_features())


def has(*names: str) -> bool:
    """Whether kernels may use all of these features."""
    return all(features().get(name, False) for name in names)


def llvm_features() -> str:
    """The features as LLVM's list of what is there and what is not."""
    listed = [f"{'+' if has else '-'}{name}" for name, has in sorted(features().items())]
    if has("avx512vnni"):
        # Left to itself LLVM takes sums of 16-bit products apart again (vpdpwssd into vpmaddwd and vpaddd), which is
        # slower where twice as many instructions wait for the same units.
        listed.append("+fast-dpwssd")
    return ",".join(listed)
