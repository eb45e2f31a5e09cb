"""Text to token ids and back, as llama.cpp does it."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

from minillama.errors import TokenizerError
from minillama.tokenizer import utf8
from minillama.tokenizer.families import (
    Conventions,
    conventions,
    default_ids,
    family_of,
    words_of,
)
from minillama.tokenizer.offsets import Encoding, OffsetCounter, source_of
from minillama.tokenizer.spaces import clean_up
from minillama.tokenizer.special import Fragment, SpecialSplitter
from minillama.tokenizer.stream import StreamDecoder
from minillama.tokenizer.text_model import TextModel, byte_of
from minillama.tokenizer.vocabulary import (
    ALWAYS_PARSED,
    PARSED_ON_REQUEST,
    SpecialIds,
    TokenAttribute,
    Vocabulary,
)

if TYPE_CHECKING:
    from minillama.gguf import GGUFFile

_log = logging.getLogger(__name__)
Errors = Literal["keep", "replace"]
_ROLE_NAMES = {"bos": "beginning-of-text", "eos": "end-of-text", "sep": "separator"}


class Tokenizer:
    """Text to token ids and back; made by `from_gguf` or `from_metadata`.

    Ids are those of llama.cpp's ``llama_tokenize`` and bytes those of its ``llama_token_to_piece``. Encoding and
    decoding are exact inverses where the vocabulary has a token for every byte; where it lacks some (SmolLM2 lacks
    U+0004, for instance) they are dropped in encoding, as llama.cpp drops them, and a warning is logged.

    Attributes
    ----------
    vocabulary
        Texts, attributes and scores of the tokens.
    model, pre
        The kind of tokenizer (``tokenizer.ggml.model``) and of pre-tokenizer (``tokenizer.ggml.pre``).
    conventions
        What is added to text: tokens around it, a space in front.
    """

    def __init__(
        self, vocabulary: Vocabulary, text_model: TextModel, *, model: str, pre: str, conventions: Conventions
    ) -> None:
        self.vocabulary = vocabulary
        self.model = model
        self.pre = pre
        self.conventions = conventions
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
        model, family = family_of(metadata)
        name, words = words_of(family, metadata, pre)
        vocabulary = Vocabulary.from_metadata(metadata, default_ids(family, words))
        text_model = family.build(metadata, vocabulary, words)
        return cls(vocabulary, text_model, model=model, pre=name, conventions=conventions(family, words, metadata))

    # Ids and tokens

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return len(self.vocabulary.texts)

    @property
    def add_bos(self) -> bool:
        """Whether the model asks for a beginning-of-text token."""
        return self.conventions.add_bos

    @property
    def add_eos(self) -> bool:
        """Whether the model asks for an end-of-text token."""
        return self.conventions.add_eos

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

    def score(self, token: SupportsIndex) -> float | None:
        """Score of a token, or ``None`` if the vocabulary has none."""
        index, scores = self._checked(token), self.vocabulary.scores
        return None if scores is None else float(scores[index])

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
        errors: Errors = "keep",
    ) -> list[int]:
        """Turn text into ids.

        Parameters
        ----------
        text
            Text, or its bytes.
        add_special
            Add the tokens around the text that the model asks for (`conventions`). If the text brings its own, there
            are two of them and a warning is logged: the flag stays in charge.
        parse_special
            Find control tokens such as ``<|im_end|>`` in the text. Off, they are plain text, so that text from users
            cannot contain them; user-defined tokens are found either way.
        errors
            What to do with bytes that are not UTF-8, where the vocabulary can express them: ``"keep"`` encodes them
            as they are; ``"replace"`` gives llama.cpp's ids, which in byte-pair encoding are those of the text with
            U+FFFD in place of each.

        Raises
        ------
        TokenizerError
            For an unpaired surrogate in a ``str``, for bytes that llama.cpp cannot replace (beyond U+10FFFF), or if a
            token that is needed does not exist.
        """
        data = _to_bytes(text)
        ids: list[int] = []
        for fragment, begins in self._fragments(data, parse_special):
            if fragment.token is not None:
                ids.append(fragment.token)
            else:
                piece = self._readable(data[fragment.start : fragment.end], errors)
                ids += self._text_model.encode(piece, begins)
        return self._with_special(ids) if add_special else ids

    def encode_with_offsets(
        self,
        text: str | bytes,
        add_special: bool = True,
        parse_special: bool = False,
        errors: Errors = "keep",
    ) -> Encoding:
        """Turn text into ids, and say where in the text each one is.

        Offsets count characters if ``text`` is a ``str``, else bytes. A token that is part of a character has the
        whole character's offsets; one that stands for no text (an added token, an added space) has an empty span.
        Parameters and errors are those of `encode`.
        """
        data = _to_bytes(text)
        counter = OffsetCounter(data, in_characters=isinstance(text, str))
        ids: list[int] = []
        for fragment, begins in self._fragments(data, parse_special):
            if fragment.token is not None:
                ids.append(fragment.token)
                counter.add(fragment.start, fragment.end)
                continue
            piece = data[fragment.start : fragment.end]
            readable = self._readable(piece, errors)
            origin = utf8.byte_spans(piece) if readable is piece else utf8.sources(piece, utf8.encode)
            sources = self._text_model.sources(readable, begins)
            for token, start, end in self._text_model.pieces(self._text_model.normalize(readable, begins)):
                ids.append(token)
                first, last = source_of(sources, start, end)
                first, last = source_of(origin, first, last)
                counter.add(fragment.start + first, fragment.start + last)
        offsets = counter.offsets
        if add_special:
            with_special = self._with_special(ids)
            before = 1 if self.conventions.first else 0
            end = len(text)
            offsets = [(0, 0)] * before + offsets + [(end, end)] * (len(with_special) - len(ids) - before)
            ids = with_special
        return Encoding(ids, offsets)

    def encode_batch(
        self,
        texts: Iterable[str | bytes],
        add_special: bool = True,
        parse_special: bool = False,
        errors: Errors = "keep",
    ) -> list[list[int]]:
        """Turn several texts into ids; see `encode`."""
        return [self.encode(text, add_special, parse_special, errors) for text in texts]

    def count(
        self,
        text: str | bytes,
        add_special: bool = True,
        parse_special: bool = False,
        errors: Errors = "keep",
    ) -> int:
        """Return ``len(encode(...))`` without making the list of ids."""
        data = _to_bytes(text)
        total = len(self._with_special([])) if add_special else 0
        for fragment, begins in self._fragments(data, parse_special):
            if fragment.token is not None:
                total += 1
            else:
                piece = self._readable(data[fragment.start : fragment.end], errors)
                total += self._text_model.count(piece, begins)
        return total

    def _fragments(self, data: bytes, parse_special: bool) -> Iterator[tuple[Fragment, bool]]:
        """Fragments of the text, and whether each one is the first or follows a special token."""
        begins = True
        splitter = self._all_special if parse_special else self._plain_special
        for fragment in splitter.split(data):
            yield fragment, begins
            begins = fragment.token is not None

    def _readable(self, data: bytes, errors: Errors) -> bytes:
        if errors not in ("keep", "replace"):
            raise TokenizerError(f"errors must be 'keep' or 'replace', is {errors!r}")
        return utf8.replace_invalid(data) if errors == "replace" and self._text_model.replaces_invalid else data

    def _with_special(self, ids: list[int]) -> list[int]:
        first, last = self._added(self.conventions.first), self._added(self.conventions.last)
        if first and ids[:1] == first:
            _log.warning("the text already begins with the beginning-of-text token that the model asks to add")
        if last and ids[-1:] == last:
            _log.warning("the text already ends with the end-of-text token that the model asks to add")
        return [*first, *ids, *last]

    def _added(self, role: str | None) -> list[int]:
        if role is None:
            return []
        token: int | None = getattr(self.special, role)
        if token is None:
            raise TokenizerError(f"the model asks for a {_ROLE_NAMES[role]} token but names none")
        return [token]

    # Decoding

    def token_to_bytes(self, token: SupportsIndex) -> bytes:
        """Bytes of one token; a part of a character for some. Special tokens are their text."""
        index = self._checked(token)
        if index not in self._bytes:
            self._bytes[index] = self._render(index)
        return self._bytes[index]

    def decode_bytes(self, ids: Iterable[SupportsIndex], skip_special: bool = False, continues: bool = False) -> bytes:
        """Bytes of all ids, one after the other; see `decode`."""
        piece = self._shown_bytes if skip_special else self.token_to_bytes
        data = b"".join([piece(token) for token in ids])
        return data.removeprefix(b" ") if self._drops_space(continues) else data

    def decode(self, ids: Iterable[SupportsIndex], skip_special: bool = False, continues: bool = False) -> str:
        """Text of all ids; bytes that are not UTF-8 become U+FFFD.

        Parameters
        ----------
        ids
            Token ids.
        skip_special
            Leave out control and unknown tokens, which otherwise appear as their text (``<|im_end|>``).
        continues
            The ids continue a text. Off, they begin one: the space that encoding has added in front (of the models
            whose `conventions` say so) is dropped.

        Raises
        ------
        TokenizerError
            For an id outside the vocabulary.
        """
        return self.decode_bytes(ids, skip_special, continues).decode("utf-8", "replace")

    def decode_batch(
        self, batch: Iterable[Iterable[SupportsIndex]], skip_special: bool = False, continues: bool = False
    ) -> list[str]:
        """Texts of several lists of ids; see `decode`."""
        return [self.decode(ids, skip_special, continues) for ids in batch]

    def detokenize(
        self, ids: Sequence[SupportsIndex], remove_special: bool = False, unparse_special: bool = False
    ) -> bytes:
        """Return what llama.cpp's ``llama_detokenize`` returns, which tidies the text: see `spaces.clean_up`.

        Parameters
        ----------
        ids
            Token ids.
        remove_special
            Leave out the beginning-of-text and end-of-text tokens that the model asks to add.
        unparse_special
            Show control tokens as their text.
        """
        tokens = [self._checked(token) for token in ids]
        drop_space = self.conventions.add_space_prefix
        if remove_special and self.add_bos and tokens[:1] == [self.bos_id]:
            tokens, drop_space = tokens[1:], False
        if remove_special and self.add_eos and tokens[-1:] == [self.eos_id]:
            tokens = tokens[:-1]
        pieces = list(map(self.token_to_bytes if unparse_special else self._shown_bytes, tokens))
        if drop_space:
            pieces[:1] = [piece.removeprefix(b" ") for piece in pieces[:1]]
        data = b"".join(pieces)
        return clean_up(data) if self.conventions.clean_spaces else data

    def stream_decoder(self, skip_special: bool = False, continues: bool = False) -> StreamDecoder:
        """Return a decoder that takes ids one at a time and never shows half a character; see `decode`."""
        piece = self._shown_bytes if skip_special else self.token_to_bytes
        return StreamDecoder(piece, self._drops_space(continues))

    def _drops_space(self, continues: bool) -> bool:
        return self.conventions.add_space_prefix and not continues

    def _shown_bytes(self, token: SupportsIndex) -> bytes:
        return b"" if self.is_special(token) else self.token_to_bytes(token)

    def _render(self, index: int) -> bytes:
        text, attributes = self.vocabulary.texts[index], self.attributes(index)
        if self._text_model.renders_all and not attributes & TokenAttribute.BYTE:
            return self._text_model.render(text)
        if attributes & (PARSED_ON_REQUEST | ALWAYS_PARSED):
            return text
        if attributes & TokenAttribute.NORMAL:
            return self._text_model.render(text)
        return byte_of(text) if attributes & TokenAttribute.BYTE else b""

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
