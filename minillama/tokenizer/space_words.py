"""Words of text that is merged as a whole: where spaces are written ``▁``, hardly any merge reaches across one."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from minillama.tokenizer.text_model import ESCAPED_SPACE

_LAST_CHARACTER = re.compile(rb".*?([\x00-\x7f]|[\xc0-\xff][\x80-\xbf]*)\Z", re.DOTALL)


class SpaceCutter:
    """Cut text before a ``▁`` wherever no merge can join it to the character before.

    Merging the parts by themselves gives what merging the whole gives, since no merge depends on anything but its two
    neighbours; and parts come again, so they can be cached.

    Parameters
    ----------
    strings
        Tokens, or lines of merges.
    joint
        What stands between the character on the left and the ``▁``: nothing within a token, a space in a merge.
    """

    def __init__(self, strings: Iterable[bytes], joint: bytes = b"") -> None:
        # No text is cut wrongly because of the zero bytes between the strings: they only make fewer cuts.
        data = np.frombuffer(bytes(4) + b"\0".join(strings), np.uint8)
        places = _places(data, joint + ESCAPED_SPACE)
        before = np.unique(sum(data[places - 4 + i].astype("<u4") << 8 * i for i in range(4)))
        self._joined = sorted({_LAST_CHARACTER.sub(rb"\1", four.tobytes()) for four in before})

    def __call__(self, text: bytes) -> npt.NDArray[np.int64]:
        """Where each part ends."""
        if not text:
            return np.empty(0, np.int64)
        whole = np.array([len(text)])
        try:
            text.decode()
        except UnicodeDecodeError:
            return whole  # a stray byte may swallow the first of a space's
        data = np.frombuffer(text, np.uint8)
        spaces = _places(data, ESCAPED_SPACE)
        spaces = spaces[spaces > 0]
        apart = np.ones(len(spaces), bool)
        for character in self._joined:
            apart &= ~_is_at(data, spaces - len(character), character)
        return np.append(spaces[apart], whole)


def _places(data: npt.NDArray[np.uint8], string: bytes) -> npt.NDArray[np.int64]:
    """Where a string occurs."""
    places = np.flatnonzero(data[: len(data) - len(string) + 1] == string[0])
    return places[_is_at(data, places, string)]


def _is_at(data: npt.NDArray[np.uint8], places: npt.NDArray[np.int64], string: bytes) -> npt.NDArray[np.bool_]:
    """Whether a string is at each place; a place in front of the data has none."""
    found = places >= 0
    for i, byte in enumerate(string):
        found &= data[np.maximum(places, 0) + i] == byte
    return found
