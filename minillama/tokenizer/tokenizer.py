"""Text to token ids and back, as llama.cpp does it."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

from minillama.errors import TokenizerError, UnsupportedError
from minillama.tokenizer import bytes_alphabet, utf8
from minillama.tokenizer.bpe import ByteLevelBPE
from minillama.tokenizer.pretokenize import pre_tokenizer
from minillama.tokenizer.special import SpecialSplitter
from minillama.tokenizer.stream import StreamDecoder
from minillama.tokenizer.vocabulary import (
    ALWAYS_PARSED,
    PARSED_ON_REQUEST,
    SpecialIds,
    TokenAttribute,
    Vocabulary,
    flag,
    string_array,
)

if TYPE_CHECKING:
    from minillama.gguf import GGUFFile

_log = logging.getLogger(__name__)
_GPT2_IDS = {"bos": 11, "eos": 11}  # of llama.cpp, for files of this kind that do not name them


class Tokenizer:
    """Text to token ids and back; made by `from_gguf` or `from_metadata`.

    Ids are those of llama.cpp's ``llama_tokenize`` and bytes those of its ``llama_token_to_piece``. Encoding and
    decoding are exact inverses where the vocabulary has a token for every byte; where it lacks some (SmolLM2 lacks
    U+0004, for instance) they are dropped in encoding, as llama.cpp drops them, and a warning is logged.
    ``llama_detokenize`` additionally removes spaces before punctuation for some models; `decode` never does.

    Attributes
    ----------
    vocabulary
        Texts, attributes and scores of the tokens.
    model, pre
        The kind of tokenizer (``tokenizer.ggml.model``) and of pre-tokenizer (``tokenizer.ggml.pre``).
    add_bos, add_eos
        What ``encode(..., add_special=True)`` adds.
    """

    def __init__(
        self, vocabulary: Vocabulary, text_model: ByteLevelBPE, *, model: str, pre: str, add_bos: bool, add_eos: bool
    ) -> None:
        self.vocabulary = vocabulary
        self.model = model
        self.pre = pre
        self.add_bos = add_bos
        self.add_eos = add_eos
        self._text_model = text_model
        self._all_special = SpecialSplitter(vocabulary.special_tokens(PARSED_ON_REQUEST | ALWAYS_PARSED))
        self._plain_special = SpecialSplitter(
            token
            for token in vocabulary.special_tokens(ALWAYS_PARSED)
            if not vocabulary.attributes[token.id] & PARSED_ON_REQUEST
        )
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_gguf(cls, source: str | os.PathLike[str] | GGUFFile, pre: str | None = None) -> Tokenizer:
        """Read the tokenizer of a GGUF file, which may hold nothing but the vocabulary.

        Parameters
        ----------
        source
            Path, or an open file (which stays open).
        pre
            Pre-tokenizer to use instead of the file's ``tokenizer.ggml.pre``.

        Raises
        ------
        TokenizerError
            If the file has no vocabulary, or one that contradicts itself.
        UnsupportedError
            If the kind of tokenizer or pre-tokenizer is not implemented.
        """
        from minillama import gguf

        if isinstance(source, gguf.GGUFFile):
            return cls.from_metadata(source.metadata, pre)
        with gguf.open(source) as file:
            return cls.from_metadata(file.metadata, pre)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], pre: str | None = None) -> Tokenizer:
        """Make a tokenizer from GGUF metadata: keys ``tokenizer.ggml.*``; string arrays may be lists of ``str``.

        Parameters and errors are those of `from_gguf`.
        """
        model = metadata.get("tokenizer.ggml.model")
        if not isinstance(model, str) or model in ("no_vocab", "none"):
            found = "missing" if model is None else repr(model)
            raise TokenizerError(f"no vocabulary: tokenizer.ggml.model is {found}")
        if model not in _FAMILIES:
            raise UnsupportedError(
                f"tokenizer kind {model!r} (tokenizer.ggml.model) is not supported; supported: {', '.join(_FAMILIES)}"
            )
        return _FAMILIES[model](metadata, pre)

    # Ids and tokens

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return len(self.vocabulary.texts)

    @property
    def special(self) -> SpecialIds:
        """Ids with a role, also the rarer ones: separator, mask, fill-in-the-middle."""
        return self.vocabulary.special

    @property
    def bos_id(self) -> int | None:
        """Beginning of text."""
        return self.special.bos

    @property
    def eos_id(self) -> int | None:
        """End of text."""
        return self.special.eos

    @property
    def eot_id(self) -> int | None:
        """End of turn."""
        return self.special.eot

    @property
    def eom_id(self) -> int | None:
        """End of message."""
        return self.special.eom

    @property
    def unk_id(self) -> int | None:
        """Unknown token."""
        return self.special.unk

    @property
    def pad_id(self) -> int | None:
        """Padding."""
        return self.special.pad

    @property
    def eog_ids(self) -> frozenset[int]:
        """Ids that end generation, as llama.cpp determines them: by role and by text."""
        return self.vocabulary.eog_ids

    def attributes(self, token: SupportsIndex) -> TokenAttribute:
        """Attributes of a token."""
        return TokenAttribute(int(self.vocabulary.attributes[self._checked(token)]))

    def is_special(self, token: SupportsIndex) -> bool:
        """Whether a token is control or unknown: found in text only with ``parse_special``, left out on request."""
        return bool(self.attributes(token) & PARSED_ON_REQUEST)

    def token_text(self, token: SupportsIndex) -> str:
        """Text of a token as the vocabulary has it, in the byte alphabet if the tokenizer uses one."""
        return self.vocabulary.texts[self._checked(token)].decode("utf-8", "surrogateescape")

    def token_id(self, text: str) -> int | None:
        """Id of the token with this text in the vocabulary, or ``None``."""
        return self.vocabulary.ids.get(text.encode("utf-8", "surrogateescape"))

    # Encoding

    def encode(
        self,
        text: str | bytes,
        add_special: bool = True,
        parse_special: bool = False,
        errors: Literal["keep", "replace"] = "keep",
    ) -> list[int]:
        """Turn text into ids.

        Parameters
        ----------
        text
            Text, or its bytes.
        add_special
            Add the beginning-of-text and end-of-text tokens that the model asks for (`add_bos`, `add_eos`). If the
            text brings its own, there are two of them and a warning is logged: the flag stays in charge.
        parse_special
            Find control tokens such as ``<|im_end|>`` in the text. Off, they are plain text, so that text from users
            cannot contain them; user-defined tokens are found either way.
        errors
            What to do with bytes that are not UTF-8: ``"keep"`` encodes them as they are; ``"replace"`` gives
            llama.cpp's ids, which are those of the text with U+FFFD in place of each.

        Raises
        ------
        TokenizerError
            For an unpaired surrogate in a ``str``, for bytes that llama.cpp cannot replace (beyond U+10FFFF), or if a
            token to be added does not exist.
        """
        if errors not in ("keep", "replace"):
            raise TokenizerError(f"errors must be 'keep' or 'replace', is {errors!r}")
        ids: list[int] = []
        splitter = self._all_special if parse_special else self._plain_special
        for piece in splitter.split(_to_bytes(text)):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += self._text_model.encode(utf8.replace_invalid(piece) if errors == "replace" else piece)
        return self._add_special(ids) if add_special else ids

    def _add_special(self, ids: list[int]) -> list[int]:
        if self.add_bos:
            if self.bos_id is None:
                raise TokenizerError("the model asks for a beginning-of-text token but names none")
            if ids[:1] == [self.bos_id]:
                _log.warning("the text already begins with the beginning-of-text token that the model asks to add")
            ids = [self.bos_id, *ids]
        if self.add_eos:
            if self.eos_id is None:
                raise TokenizerError("the model asks for an end-of-text token but names none")
            if ids[-1:] == [self.eos_id]:
                _log.warning("the text already ends with the end-of-text token that the model asks to add")
            ids = [*ids, self.eos_id]
        return ids

    # Decoding

    def token_to_bytes(self, token: SupportsIndex) -> bytes:
        """Bytes of one token; a part of a character for some. Special tokens are their text."""
        index = self._checked(token)
        if index not in self._bytes:
            self._bytes[index] = self._render(index)
        return self._bytes[index]

    def decode_bytes(self, ids: Iterable[SupportsIndex], skip_special: bool = False) -> bytes:
        """Bytes of all ids, one after the other; with ``skip_special`` without control and unknown tokens."""
        piece = self._shown_bytes if skip_special else self.token_to_bytes
        return b"".join([piece(token) for token in ids])

    def decode(self, ids: Iterable[SupportsIndex], skip_special: bool = False) -> str:
        """Text of all ids; bytes that are not UTF-8 become U+FFFD.

        Parameters
        ----------
        ids
            Token ids.
        skip_special
            Leave out control and unknown tokens, which otherwise appear as their text (``<|im_end|>``).

        Raises
        ------
        TokenizerError
            For an id outside the vocabulary.
        """
        return self.decode_bytes(ids, skip_special).decode("utf-8", "replace")

    def stream_decoder(self, skip_special: bool = False) -> StreamDecoder:
        """Return a decoder that takes ids one at a time and never shows half a character."""
        return StreamDecoder(self._shown_bytes if skip_special else self.token_to_bytes)

    def _shown_bytes(self, token: SupportsIndex) -> bytes:
        return b"" if self.is_special(token) else self.token_to_bytes(token)

    def _render(self, index: int) -> bytes:
        text, attributes = self.vocabulary.texts[index], self.attributes(index)
        if attributes & (PARSED_ON_REQUEST | ALWAYS_PARSED):
            return text
        if attributes & TokenAttribute.NORMAL:
            return bytes_alphabet.unspell(text)
        if attributes & TokenAttribute.BYTE:
            return bytes([int(text[3:5], 16)])  # <0xE6>
        return b""

    def _checked(self, token: SupportsIndex) -> int:
        try:
            index = operator.index(token)
        except TypeError:
            raise TokenizerError(f"a token id must be an integer, is {type(token).__name__}") from None
        if not 0 <= index < self.n_vocab:
            raise TokenizerError(f"token id {index} is outside the vocabulary of {self.n_vocab} tokens")
        return index

    def __repr__(self) -> str:
        return f"<Tokenizer {self.model}/{self.pre}, {self.n_vocab} tokens>"


def _to_bytes(text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise TokenizerError(f"text must be str or bytes, is {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise TokenizerError(f"character {error.start} of the text is an unpaired surrogate (U+{code:X})") from None


def _byte_level(metadata: Mapping[str, Any], pre: str | None) -> Tokenizer:
    name = pre if pre is not None else metadata.get("tokenizer.ggml.pre")
    if not isinstance(name, str) or (pre is None and name == "default"):
        found = "missing" if name is None else repr(name)
        raise UnsupportedError(
            f"tokenizer.ggml.pre is {found}: how to cut text into words is unknown; "
            "pass pre='default' for llama.cpp's fallback"
        )
    cutter = pre_tokenizer(name)
    vocabulary = Vocabulary.from_metadata(metadata, _GPT2_IDS)
    return Tokenizer(
        vocabulary,
        ByteLevelBPE(vocabulary.ids, string_array(metadata, "merges"), cutter),
        model="gpt2",
        pre=name,
        add_bos=flag(metadata, "add_bos_token", cutter.add_bos),
        add_eos=flag(metadata, "add_eos_token", False),
    )


_FAMILIES: dict[str, Callable[[Mapping[str, Any], str | None], Tokenizer]] = {"gpt2": _byte_level}
