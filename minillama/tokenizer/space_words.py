"""Words of text that is merged as a whole: where spaces are written ``▁``, hardly any merge reaches across one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from minillama.tokenizer import utf8
from minillama.tokenizer.text_model import ESCAPED_SPACE


class SpaceCutter:
    """Cut text before a ``▁`` wherever no merge can join it to the character before.

    Merging the parts by themselves gives what merging the whole gives, since no merge depends on anything but its two
    neighbours; and parts come again, so they can be cached.

    Parameters
    ----------
    lefts
        What may stand on the left of a merge whose right side begins with ``▁``.
    """

    def __init__(self, lefts: Iterable[bytes]) -> None:
        self._joined = sorted({utf8.characters(left)[-1] for left in set(lefts) if left})

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
        places = np.flatnonzero(data[: -len(ESCAPED_SPACE) + 1] == ESCAPED_SPACE[0])
        spaces = places[(places > 0) & _is_at(data, places, ESCAPED_SPACE)]
        apart = np.ones(len(spaces), bool)
        for character in self._joined:
            apart &= ~_is_at(data, spaces - len(character), character)
        return np.append(spaces[apart], whole)


def _is_at(data: npt.NDArray[np.uint8], places: npt.NDArray[np.int64], string: bytes) -> npt.NDArray[np.bool_]:
    """Whether a string is at each place; a place in front of the data has none."""
    found = places >= 0
    for i, byte in enumerate(string):
        found &= data[np.maximum(places, 0) + i] == byte
    return found
