"""Bytes to token ids and back; the kind of tokenizer is what the file says it is, never guessed."""

from minillama.tokenizer.offsets import Encoding
from minillama.tokenizer.stream import StreamDecoder
from minillama.tokenizer.tokenizer import Tokenizer
from minillama.tokenizer.vocabulary import SpecialIds, TokenAttribute, Vocabulary

__all__ = ["Encoding", "SpecialIds", "StreamDecoder", "TokenAttribute", "Tokenizer", "Vocabulary"]
