"""The kinds of tokenizer by ``tokenizer.ggml.model``, and how each is made from a file's metadata."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.errors import TokenizerError, UnsupportedError
from minillama.tokenizer.bpe import BytePairEncoding
from minillama.tokenizer.charsmap import CharsMap
from minillama.tokenizer.hybrids import HybridDNA, WhitespaceBPE
from minillama.tokenizer.patterns import PreTokenization, pre_tokenization
from minillama.tokenizer.plamo2 import BestCut
from minillama.tokenizer.rwkv import LongestToken
from minillama.tokenizer.sentencepiece import SentencePiece
from minillama.tokenizer.text_model import TextModel
from minillama.tokenizer.unigram import SpaceRules, Unigram
from minillama.tokenizer.vocabulary import (
    PARSED_ON_REQUEST,
    TokenAttribute,
    Vocabulary,
    file_attributes,
    flag,
    string_array,
)
from minillama.tokenizer.wordpiece import WordPiece

_A = TokenAttribute
Metadata = Mapping[str, Any]
Builder = Callable[[Metadata, Vocabulary, PreTokenization | None], TextModel]


@dataclass(frozen=True)
class Conventions:
    """What is added to text and taken from it.

    Attributes
    ----------
    add_bos, add_eos, add_sep
        What the file says about beginning, end and separator; else what its family does.
    first, last
        Roles of the tokens that ``encode(..., add_special=True)`` puts around the text.
    add_space_prefix
        Whether text begins with an added space.
    clean_spaces
        Whether `Tokenizer.detokenize` takes spaces before punctuation away.
    """

    add_bos: bool = False
    add_eos: bool = False
    add_sep: bool = False
    first: str | None = None
    last: str | None = None
    add_space_prefix: bool = False
    clean_spaces: bool = False


@dataclass(frozen=True)
class Family:
    """One kind of tokenizer.

    Attributes
    ----------
    build
        Make the text model.
    default_ids
        Ids of roles that the file does not name.
    conventions
        What is done where the file does not say.
    adds
        Roles of the tokens put around text if the conventions ask for them; with ``always_adds`` in any case.
    has_words
        Whether text is cut into words by ``tokenizer.ggml.pre``, or by ``pre`` whatever the file says.
    """

    build: Builder
    default_ids: Mapping[str, int] = field(default_factory=dict)
    conventions: Conventions = field(default_factory=Conventions)
    adds: tuple[str | None, str | None] = ("bos", "eos")
    always_adds: bool = False
    has_words: bool = False
    pre: str | None = None


def _bpe(metadata: Metadata, vocabulary: Vocabulary, pre: PreTokenization | None) -> BytePairEncoding:
    assert pre is not None
    # Kimi-K2's files may come without merges.
    optional = pre.patterns == "kimi-k2" and "tokenizer.ggml.merges" not in metadata
    merges = [] if optional else string_array(metadata, "merges")
    return BytePairEncoding(vocabulary.ids, merges, pre)


def _whitespace(metadata: Metadata, vocabulary: Vocabulary, pre: PreTokenization | None) -> WhitespaceBPE:
    by_default = pre is None or pre.patterns != "whitespace"
    return WhitespaceBPE(_bpe(metadata, vocabulary, pre), flag(metadata, "normalizer.lowercase", by_default))


def _hybrid_dna(metadata: Metadata, vocabulary: Vocabulary, pre: PreTokenization | None) -> HybridDNA:
    return HybridDNA(_bpe(metadata, vocabulary, pre), vocabulary.ids)


def _sentencepiece(metadata: Metadata, vocabulary: Vocabulary, _pre: PreTokenization | None) -> SentencePiece:
    return SentencePiece(vocabulary.ids, vocabulary.scores_or_zeros, flag(metadata, "add_space_prefix", True))


def _wordpiece(metadata: Metadata, vocabulary: Vocabulary, _pre: PreTokenization | None) -> WordPiece:
    lower = flag(metadata, "normalizer.lowercase", True)
    strip_accents = flag(metadata, "normalizer.strip_accents", lower)
    return WordPiece(vocabulary.ids, vocabulary.special.unk, lower=lower, strip_accents=strip_accents)


def _unigram(metadata: Metadata, vocabulary: Vocabulary, _pre: PreTokenization | None) -> Unigram:
    # llama.cpp builds this before it corrects attributes.
    attributes = file_attributes(metadata, len(vocabulary.texts))
    scores = vocabulary.scores_or_zeros.copy()
    ordinary = scores[(attributes & _A.NORMAL) != 0]
    scores[(vocabulary.attributes & _A.USER_DEFINED) != 0] = 0.0
    usable = (attributes & (_A.NORMAL | _A.USER_DEFINED | _A.UNUSED)) != 0
    table = metadata.get("tokenizer.ggml.precompiled_charsmap")
    return Unigram(
        vocabulary.ids_where(usable),
        scores,
        ordinary.min() if len(ordinary) else np.finfo(np.float32).max,
        list(vocabulary.ids_where((attributes & _A.USER_DEFINED) != 0)),
        vocabulary.special.unk,
        None if table is None else CharsMap(_bytes_of(table)),
        SpaceRules(flag(metadata, "add_space_prefix", False), flag(metadata, "remove_extra_whitespaces", False)),
    )


def _bytes_of(table: Any) -> npt.NDArray[np.uint8]:
    array = np.asarray(table)
    if array.ndim != 1 or array.dtype.itemsize != 1:
        raise TokenizerError("tokenizer.ggml.precompiled_charsmap must be an array of bytes")
    return array.view(np.uint8)


def _rwkv(_metadata: Metadata, vocabulary: Vocabulary, _pre: PreTokenization | None) -> LongestToken:
    return LongestToken(vocabulary.ids_where(_is_plain(vocabulary)), vocabulary.special.unk)


def _plamo2(_metadata: Metadata, vocabulary: Vocabulary, _pre: PreTokenization | None) -> BestCut:
    is_byte = (vocabulary.attributes & _A.BYTE) != 0
    words = vocabulary.ids_where(_is_plain(vocabulary) & ~is_byte)
    return BestCut(words, vocabulary.ids_where(is_byte), vocabulary.scores_or_zeros)


def _is_plain(vocabulary: Vocabulary) -> npt.NDArray[np.bool_]:
    """Which tokens text may become when special tokens are plain text.

    llama.cpp finds control tokens here too, with ``parse_special`` off: whoever writes the text could inject them.
    """
    plain: npt.NDArray[np.bool_] = (vocabulary.attributes & PARSED_ON_REQUEST) == 0
    return plain


_gpt2 = functools.partial(
    Family, default_ids={"bos": 11, "eos": 11}, conventions=Conventions(clean_spaces=True), has_words=True
)
FAMILIES = {
    "gpt2": _gpt2(_bpe),
    "hybriddna": _gpt2(_hybrid_dna),
    "whitespace": _gpt2(_whitespace),
    "gemma4": Family(_bpe, conventions=Conventions(clean_spaces=True), has_words=True, pre="gemma4"),
    "llama": Family(
        _sentencepiece,
        default_ids={"bos": 1, "eos": 2, "unk": 0},
        conventions=Conventions(add_bos=True, add_space_prefix=True),
    ),
    "bert": Family(
        _wordpiece,
        default_ids={"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
        conventions=Conventions(add_bos=True, add_sep=True, clean_spaces=True),
        adds=("bos", "sep"),
        always_adds=True,
    ),
    "t5": Family(_unigram, default_ids={"eos": 1, "unk": 2, "pad": 0}, conventions=Conventions(add_eos=True)),
    "rwkv": Family(_rwkv, adds=(None, None)),
    "plamo2": Family(_plamo2, default_ids={"bos": 1, "eos": 2, "unk": 0, "pad": 3}, adds=(None, None)),
}


def family_of(metadata: Metadata) -> tuple[str, Family]:
    """Kind of tokenizer that the file says it has.

    Raises
    ------
    TokenizerError
        If it has none.
    UnsupportedError
        If it is not a known one.
    """
    model = metadata.get("tokenizer.ggml.model")
    if not isinstance(model, str) or model in ("no_vocab", "none"):
        found = "missing" if model is None else repr(model)
        raise TokenizerError(f"no vocabulary: tokenizer.ggml.model is {found}")
    if model not in FAMILIES:
        raise UnsupportedError(
            f"tokenizer kind {model!r} (tokenizer.ggml.model) is not supported; supported: {', '.join(FAMILIES)}"
        )
    return model, FAMILIES[model]


def words_of(family: Family, metadata: Metadata, pre: str | None) -> tuple[str, PreTokenization | None]:
    """Name and meaning of the pre-tokenizer: the one asked for, else the family's own, else the file's.

    Raises
    ------
    UnsupportedError
        If the file names none, or one that is not known: a wrong one would give plausible nonsense.
    """
    in_file = metadata.get("tokenizer.ggml.pre")
    if not family.has_words:
        return in_file if isinstance(in_file, str) else "default", None
    name = pre or family.pre or in_file
    if not isinstance(name, str) or (pre is None and name == "default"):
        found = "missing" if name is None else repr(name)
        raise UnsupportedError(
            f"tokenizer.ggml.pre is {found}: how to cut text into words is unknown; "
            "pass pre='default' for llama.cpp's fallback"
        )
    return name, pre_tokenization(name)


def default_ids(family: Family, words: PreTokenization | None) -> Mapping[str, int]:
    """Ids of roles that the file does not name."""
    if words is not None and not words.names_bos:
        return {role: token for role, token in family.default_ids.items() if role != "bos"}
    return family.default_ids


def conventions(family: Family, words: PreTokenization | None, metadata: Metadata) -> Conventions:
    """What the file says is added; else what its pre-tokenizer or family does."""
    own = family.conventions
    add_bos = flag(metadata, "add_bos_token", words.add_bos if words else own.add_bos)
    add_eos = flag(metadata, "add_eos_token", own.add_eos)
    if words is not None and words.always_bos:
        add_bos = True
    first, last = family.adds
    return Conventions(
        add_bos=add_bos,
        add_eos=add_eos,
        add_sep=flag(metadata, "add_sep_token", words.add_sep if words else own.add_sep),
        first=first if add_bos or family.always_adds else None,
        last=last if add_eos or family.always_adds else None,
        add_space_prefix=flag(metadata, "add_space_prefix", own.add_space_prefix),
        clean_spaces=words.clean_spaces if words else own.clean_spaces,
    )
