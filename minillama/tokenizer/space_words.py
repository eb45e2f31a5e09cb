"""Words of text that is merged as a whole: where spaces are written ``▁``, hardly any merge reaches across one."""

from __future__ import annotations

import re
from collections.abc import Iterable

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
        joined = {utf8.characters(left)[-1] for left in set(lefts) if left}
        by_length: dict[int, list[bytes]] = {}
        for character in sorted(joined):
            by_length.setdefault(len(character), []).append(re.escape(character))
        apart = b"".join(b"(?<!" + b"|".join(alternatives) + b")" for alternatives in by_length.values())
        self._cut = re.compile(b"(?=" + ESCAPED_SPACE + b")" + apart)

    def __call__(self, text: bytes) -> list[bytes]:
        """Parts of the text; joined they are the text."""
        try:
            text.decode()
        except UnicodeDecodeError:
            return [text] if text else []  # a stray byte may swallow the first of a space's
        return [part for part in self._cut.split(text) if part]
