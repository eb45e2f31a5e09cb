"""Read the general categories llama.cpp gives to code points, and print them in the form minillama keeps them.

Usage: ``python -m tests.reference.tokenizer_unicode unicode-data.cpp`` prints one block of ranges per class, to be
pasted into ``minillama/tokenizer/unicode_classes.py``.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable
from pathlib import Path

# Bits of llama.cpp's table (unicode.h); every code point has exactly one of the category bits.
CATEGORY_BITS = {"NUMBERS": 0x02, "LETTERS": 0x04, "PUNCTUATION": 0x20}


def _block(source: str, name: str) -> str:
    start = source.index(f"{name} =")
    return source[start : source.index("};", start)]


def read_classes(source: str) -> dict[str, set[int]]:
    """Code points of each class, from the text of ``unicode-data.cpp``."""
    pairs = re.findall(r"\{0x([0-9A-Fa-f]+), 0x([0-9A-Fa-f]+)\}", _block(source, "unicode_ranges_flags"))
    steps = [(int(first, 16), int(flags, 16)) for first, flags in pairs]
    classes: dict[str, set[int]] = {name: set() for name in CATEGORY_BITS}
    for (first, flags), (after, _) in itertools.pairwise(steps):
        for name, bit in CATEGORY_BITS.items():
            if flags & bit:
                classes[name].update(range(first, after))
    spaces = re.findall(r"0x([0-9A-Fa-f]+)", _block(source, "unicode_set_whitespace"))
    classes["WHITESPACE"] = {int(code, 16) for code in spaces}
    return classes


def format_ranges(codes: Iterable[int]) -> str:
    """Hexadecimal ranges ``first-last`` (or ``only``), separated by spaces."""
    ranges: list[list[int]] = []
    for code in sorted(codes):
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return " ".join(f"{first:x}-{last:x}" if last > first else f"{first:x}" for first, last in ranges)


if __name__ == "__main__":
    import textwrap

    for name, codes in read_classes(Path(sys.argv[1]).read_text(encoding="utf-8")).items():
        print(f'_{name} = """')
        print("\n".join(textwrap.wrap(format_ranges(codes), 116, break_on_hyphens=False)))
        print('"""\n')
