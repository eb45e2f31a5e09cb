"""The vocabulary of a model: texts, attributes and scores of tokens, and which ids have a special role.

Much of it is not in the file but in llama.cpp, which recognises tokens by their text (`_NAMED`, `_END_NAMES`) and
corrects attributes accordingly. The rules here are its rules.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.errors import TokenizerError
from minillama.tokenizer.special import SpecialToken

_KEY = "tokenizer.ggml."


class TokenAttribute(enum.IntFlag):
    """What kind of token it is; the values are those of ``llama_token_attr``."""

    UNDEFINED = 0
    UNKNOWN = 1 << 0
    UNUSED = 1 << 1
    NORMAL = 1 << 2
    CONTROL = 1 << 3
    USER_DEFINED = 1 << 4
    BYTE = 1 << 5
    LSTRIP = 1 << 7
    RSTRIP = 1 << 8


_A = TokenAttribute
_ATTRIBUTE_OF_TYPE = np.array(  # by tokenizer.ggml.token_type
    [_A.UNDEFINED, _A.NORMAL, _A.UNKNOWN, _A.CONTROL, _A.USER_DEFINED, _A.UNUSED, _A.BYTE], np.int32
)
PARSED_ON_REQUEST = _A.CONTROL | _A.UNKNOWN
ALWAYS_PARSED = _A.USER_DEFINED

# Keys of the special ids; where a role has two, the second is the deprecated one and is read last.
_ID_KEYS = {
    "bos": ("bos_token_id",),
    "eos": ("eos_token_id",),
    "eot": ("eot_token_id",),
    "eom": ("eom_token_id",),
    "unk": ("unknown_token_id",),
    "sep": ("seperator_token_id",),  # spelled so in the format
    "pad": ("padding_token_id",),
    "mask": ("mask_token_id",),
    "fim_pre": ("fim_pre_token_id", "prefix_token_id"),
    "fim_suf": ("fim_suf_token_id", "suffix_token_id"),
    "fim_mid": ("fim_mid_token_id", "middle_token_id"),
    "fim_pad": ("fim_pad_token_id",),
    "fim_rep": ("fim_rep_token_id",),
    "fim_sep": ("fim_sep_token_id",),
}
# Texts by which a role is filled when the file does not name its id. Of several that occur, the first one here counts
# (llama.cpp takes whichever its hash table yields first).
_NAMED = {
    "eot": (
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>",
        "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>",
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip
# Texts that end generation wherever they are in the vocabulary.
_END_NAMES = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip
_ALWAYS_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
_MASK_TAKES_SPACE = ("jina-v2-de", "jina-v2-es", "jina-v2-code", "nomic-bert-moe", "jina-bert-v3")


@dataclass(frozen=True)
class SpecialIds:
    """Ids with a role; ``None`` where the vocabulary has no such token."""

    bos: int | None
    eos: int | None
    eot: int | None
    eom: int | None
    unk: int | None
    sep: int | None
    pad: int | None
    mask: int | None
    fim_pre: int | None
    fim_suf: int | None
    fim_mid: int | None
    fim_pad: int | None
    fim_rep: int | None
    fim_sep: int | None


@dataclass(frozen=True)
class Vocabulary:
    """Tokens and their roles.

    Attributes
    ----------
    texts
        Text of every token as the file has it; an empty one is named ``[EMPTY_i]`` as in llama.cpp.
    ids
        Id of every text.
    attributes
        `TokenAttribute` of every token, after llama.cpp's corrections.
    scores
        Score of every token, or ``None`` if the file has none.
    special
        Ids with a role.
    eog_ids
        Ids that end generation.
    """

    texts: list[bytes]
    ids: dict[bytes, int]
    attributes: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32] | None
    special: SpecialIds
    eog_ids: frozenset[int]

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], default_ids: Mapping[str, int]) -> Vocabulary:
        """Read the vocabulary from GGUF metadata.

        Parameters
        ----------
        metadata
            Keys and values of the file.
        default_ids
            Ids of roles the file does not name, which the tokenizer's family has by convention.

        Raises
        ------
        TokenizerError
            If there are no tokens, two tokens are equal, or an array has the wrong length or type.
        """
        texts = [text or b"[EMPTY_%d]" % i for i, text in enumerate(string_array(metadata, "tokens"))]
        ids = _index(texts)
        if metadata.get(_KEY + "model") == "hybriddna":
            texts = _without_base_marker(texts, ids)
        attributes = file_attributes(metadata, len(texts))
        roles = _read_special_ids(metadata, default_ids, len(texts))
        _find_named(roles, ids, attributes)
        _mark_unused(texts, attributes)
        eog = _find_ends(roles, ids, attributes)
        _add_strip(metadata, ids, attributes)
        return cls(
            texts=texts,
            ids=ids,
            attributes=attributes,
            scores=_read_scores(metadata, len(texts)),
            special=SpecialIds(**roles),
            eog_ids=frozenset(eog),
        )

    @property
    def scores_or_zeros(self) -> npt.NDArray[np.float32]:
        """Score of every token; 0 if the file has none."""
        return np.zeros(len(self.texts), np.float32) if self.scores is None else self.scores

    def ids_where(self, mask: npt.NDArray[np.bool_]) -> dict[bytes, int]:
        """Return the tokens that a mask selects: ids by text."""
        return {self.texts[i]: i for i in np.flatnonzero(mask).tolist()}

    def special_tokens(self, attributes: TokenAttribute) -> Iterable[SpecialToken]:
        """Tokens with any of the attributes, as they are to be found in text."""
        for i in np.flatnonzero(self.attributes & attributes).tolist():
            own = int(self.attributes[i])
            yield SpecialToken(i, self.texts[i], bool(own & _A.LSTRIP), bool(own & _A.RSTRIP))


def string_array(metadata: Mapping[str, Any], name: str) -> list[bytes]:
    """Return the strings of ``tokenizer.ggml.<name>`` as bytes."""
    values = metadata.get(_KEY + name)
    if values is None:
        raise TokenizerError(f"no usable vocabulary: {_KEY + name} is missing")
    if hasattr(values, "raw_list"):
        raw: list[bytes] = values.raw_list()
        return _as_c_strings(raw)
    if not isinstance(values, Sequence) or isinstance(values, str) or not all(isinstance(text, str) for text in values):
        raise TokenizerError(f"{_KEY + name} must be an array of strings")
    return _as_c_strings([text.encode("utf-8", "surrogateescape") for text in values])


def _as_c_strings(texts: list[bytes]) -> list[bytes]:
    """Texts up to their first zero byte: llama.cpp reads no further."""
    if b"\0" in b"".join(texts):
        return [text.partition(b"\0")[0] for text in texts]
    return texts


def flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    """Return the boolean ``tokenizer.ggml.<name>``, or the default if it is missing."""
    value = metadata.get(_KEY + name, default)
    if not isinstance(value, bool | np.bool_):
        raise TokenizerError(f"{_KEY + name} must be true or false, is {value!r}")
    return bool(value)


def _index(texts: list[bytes]) -> dict[bytes, int]:
    if not texts:
        raise TokenizerError(f"no usable vocabulary: {_KEY}tokens is empty")
    ids = dict(zip(texts, range(len(texts)), strict=True))
    if len(ids) < len(texts):
        first = next(i for i, text in enumerate(texts) if ids[text] != i)
        raise TokenizerError(f"{_KEY}tokens: ids {first} and {ids[texts[first]]} are both {texts[first]!r}")
    return ids


def _without_base_marker(texts: list[bytes], ids: Mapping[bytes, int]) -> list[bytes]:
    """Six bases are told from an ordinary token by U+E000 in the file, and shown without it; they follow ``<oov>``."""
    first = ids.get(b"<oov>", len(texts)) + 1
    marker = "\ue000".encode()
    return [*texts[:first], *(text.removesuffix(marker) if text != marker else text for text in texts[first:])]


def _numbers(metadata: Mapping[str, Any], name: str, n: int) -> npt.NDArray[Any] | None:
    values = metadata.get(_KEY + name)
    if values is None:
        return None
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise TokenizerError(f"{_KEY + name} must be an array of numbers")
    if len(array) < n:
        raise TokenizerError(f"{_KEY + name} has {len(array)} values for {n} tokens")
    return array[:n]


def file_attributes(metadata: Mapping[str, Any], n: int) -> npt.NDArray[np.int32]:
    """Attributes of the tokens as the file has them, before llama.cpp's corrections."""
    types = _numbers(metadata, "token_type", n)
    if types is None:
        return np.full(n, _A.NORMAL, np.int32)
    known = (types >= 0) & (types < len(_ATTRIBUTE_OF_TYPE))
    return _ATTRIBUTE_OF_TYPE[np.where(known, types, 0).astype(np.intp)]


def _read_scores(metadata: Mapping[str, Any], n: int) -> npt.NDArray[np.float32] | None:
    scores = _numbers(metadata, "scores", n)
    return None if scores is None else scores.astype(np.float32)


def _read_special_ids(metadata: Mapping[str, Any], default_ids: Mapping[str, int], n: int) -> dict[str, int | None]:
    """Ids the file names, else the family's; an id beyond the vocabulary counts as not named."""
    roles: dict[str, int | None] = {}
    for role, keys in _ID_KEYS.items():
        roles[role] = default_ids.get(role)
        for key in keys:
            value = metadata.get(_KEY + key)
            if value is not None and not isinstance(value, int | np.integer):
                raise TokenizerError(f"{_KEY + key} must be a token id, is {value!r}")
            if value is not None and 0 <= value < n:
                roles[role] = int(value)
        if (found := roles[role]) is not None and found >= n:
            roles[role] = None
    return roles


def _find_named(roles: dict[str, int | None], ids: dict[bytes, int], attributes: npt.NDArray[np.int32]) -> None:
    for role, names in _NAMED.items():
        if roles[role] is None:
            roles[role] = next((ids[name.encode()] for name in names if name.encode() in ids), None)
            if (found := roles[role]) is not None:
                attributes[found] |= _A.CONTROL


def _mark_unused(texts: list[bytes], attributes: npt.NDArray[np.int32]) -> None:
    for i in np.flatnonzero(attributes & _A.CONTROL).tolist():
        if b"unused" in texts[i]:
            attributes[i] |= _A.UNUSED


def _find_ends(roles: Mapping[str, int | None], ids: dict[bytes, int], attributes: npt.NDArray[np.int32]) -> set[int]:
    named = {name: ids[name.encode()] for name in _END_NAMES if name.encode() in ids}
    for token in named.values():
        attributes[token] |= _A.CONTROL
    for name in _ALWAYS_SHOWN:
        if name.encode() in ids:
            attributes[ids[name.encode()]] = _A.USER_DEFINED
    with_role = {roles[role] for role in ("fim_pad", "fim_rep", "fim_sep", "eos", "eot", "eom")}
    ends = {*named.values(), *(token for token in with_role if token is not None)}
    _correct_ends(ends, named, attributes, ids)
    return ends


def _correct_ends(
    ends: set[int], named: Mapping[str, int], attributes: npt.NDArray[np.int32], ids: dict[bytes, int]
) -> None:
    """Take back the two ends that are ordinary text in some families."""
    # gpt-oss and solar-open: <|end|> ends a message, not the answer.
    calls = "<|call|>" in named or "<|calls|>" in named
    if calls and ("<|return|>" in named or "<|flush|>" in named) and "<|end|>" in named:
        ends.discard(named["<|end|>"])
        attributes[named["<|end|>"]] = _A.USER_DEFINED
    # gemma4 and plamo have an ordinary </s>.
    if "</s>" in named and ("<|tool_response>" in named or ids.get(b"<|plamo:eos|>") in ends):
        ends.discard(named["</s>"])
        attributes[named["</s>"]] = _A.NORMAL


def _add_strip(metadata: Mapping[str, Any], ids: dict[bytes, int], attributes: npt.NDArray[np.int32]) -> None:
    """White space beside special tokens: not in the file, so llama.cpp goes by the names of models."""
    pre = str(metadata.get(_KEY + "pre", ""))
    architecture = str(metadata.get("general.architecture", ""))
    name = str(metadata.get("general.name", "")).lower()
    if any(part in pre for part in _MASK_TAKES_SPACE) or any(part in architecture for part in _MASK_TAKES_SPACE):
        _set_strip(b"<mask>", ids, attributes, _A.LSTRIP)
    elif "phi-3" in name or "phi3" in name:
        attributes[(attributes & (PARSED_ON_REQUEST | ALWAYS_PARSED)) != 0] |= _A.RSTRIP
        _set_strip(b"</s>", ids, attributes, _A.RSTRIP)
        for text in (b"<unk>", b"<s>", b"<|endoftext|>"):
            if text in ids:
                attributes[ids[text]] &= ~_A.RSTRIP
    elif "modern-bert" in name:
        _set_strip(b"[MASK]", ids, attributes, _A.LSTRIP)


def _set_strip(text: bytes, ids: dict[bytes, int], attributes: npt.NDArray[np.int32], strip: TokenAttribute) -> None:
    if text in ids:
        attributes[ids[text]] |= strip
