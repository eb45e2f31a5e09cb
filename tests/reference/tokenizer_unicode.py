"""Read what llama.cpp knows of code points, and print it in the form minillama keeps it.

Usage: ``python -m tests.reference.tokenizer_unicode unicode-data.cpp`` prints one block of ranges per class and the
lower-case letters, to be pasted into ``minillama/tokenizer/unicode_data.py``.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable
from pathlib import Path

# Bits of llama.cpp's table (unicode.h); every code point has exactly one of the category bits.
CATEGORY_BITS = {
    "NUMBERS": 0x02, "LETTERS": 0x04, "MARKS": 0x10, "PUNCTUATION": 0x20, "SYMBOLS": 0x40, "CONTROLS": 0x80,
}  # fmt: skip


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


def read_lowercase(source: str) -> dict[int, int]:
    """Lower-case letter of each letter that has one."""
    pairs = re.findall(r"\{0x([0-9A-Fa-f]+), 0x([0-9A-Fa-f]+)\}", _block(source, "unicode_map_lowercase"))
    return {int(upper, 16): int(lower, 16) for upper, lower in pairs}


def read_base_letters(source: str) -> dict[int, int]:
    """First code point of the canonical decomposition of each code point that has one."""
    rows = re.findall(r"\{0x(\w+), 0x(\w+), 0x(\w+)\}", _block(source, "unicode_ranges_nfd"))
    ranges = [tuple(int(code, 16) for code in row) for row in rows]
    return {code: base for first, last, base in ranges for code in range(first, last + 1)}


def format_ranges(codes: Iterable[int]) -> str:
    """Hexadecimal ranges ``first-last`` (or ``only``), separated by spaces."""
    ranges: list[list[int]] = []
    for code in sorted(codes):
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return " ".join(f"{first:x}-{last:x}" if last > first else f"{first:x}" for first, last in ranges)


def format_lowercase(lowercase: dict[int, int]) -> str:
    """Ranges ``first-last/step+difference``, hexadecimal; the step is left out where it is 1."""
    ranges: list[list[int]] = []  # first, last, step, difference
    for upper, lower in sorted(lowercase.items()):
        if ranges and lower - upper == ranges[-1][3]:
            first, last, step, _ = ranges[-1]
            if upper - last == step or (first == last and upper - last == 2):
                ranges[-1][1:3] = [upper, upper - last]
                continue
        ranges.append([upper, upper, 1, lower - upper])
    return " ".join(
        f"{first:x}" + (f"-{last:x}" if last > first else "") + ("/2" if step == 2 else "") + f"{difference:+x}"
        for first, last, step, difference in ranges
    )


def main(path: str) -> None:
    """Print all tables."""
    import textwrap

    source = Path(path).read_text(encoding="utf-8")
    tables = {name: format_ranges(codes) for name, codes in read_classes(source).items()}
    tables["LOWERCASE"] = format_lowercase(read_lowercase(source))
    for name, text in tables.items():
        print(f'{name} = """')
        print("\n".join(textwrap.wrap(text, 116, break_on_hyphens=False)))
        print('"""\n')


if __name__ == "__main__":
    main(sys.argv[1])
