"""Tidying decoded text (``clean_up_tokenization_spaces``)."""

from __future__ import annotations

import re

_BEFORE_PUNCTUATION = re.compile(rb" ([?!.,])")
_AROUND_APOSTROPHE = re.compile(rb" ' ")
_BEFORE_CONTRACTION = re.compile(rb" ('(?:[sm]|re|ve))")


def clean_up(data: bytes) -> bytes:
    """Take spaces away before punctuation, around a lone apostrophe, and before 's, 'm, 're and 've."""
    data = _BEFORE_PUNCTUATION.sub(rb"\1", data)
    return _BEFORE_CONTRACTION.sub(rb"\1", _AROUND_APOSTROPHE.sub(b"'", data))
