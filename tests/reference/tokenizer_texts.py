"""Texts that find differences between tokenizers: scripts, digits, spaces, line ends, code, special tokens."""

from __future__ import annotations

import random
from pathlib import Path

_CODE = [
    "def f(x: int) -> str:\n    return f'{x!r:>10}'  # 100%\n\n\nclass A(B):\n\tpass\n",
    '#include <stdio.h>\r\nint main(void) {\r\n\tprintf("%08.3f\\n", 3.14159e-10);\r\n\treturn 0;\r\n}\r\n',
    'fn main() { let v: Vec<&\'static str> = vec!["a", "b"]; println!("{:?}", v); }',
    "SELECT * FROM t WHERE a>=10 AND b<>'it''s' -- x\n;",
    '<div class="a b"><!-- c --><p>1 &lt; 2</p></div>\n\n',
    "const f = (x) => x?.y ?? [...z, 0xFF, 1_000n];  /* ... */\n",
    "\\begin{equation}\n  \\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2}\n\\end{equation}",
    '{"k": [1, 2.5e+3, null, true], "ü": "\\u00fc"}',
    "for i in {1..10}; do echo \"$i\" | sed 's/1/[&]/g' >> /tmp/x 2>&1; done",
    "| a | b |\n|---|:-:|\n| 1 | 22 | 333 | 4444 |\n",
    "public static <T extends Comparable<T>> int f(List<? super T> l) { return l.size() >>> 1; }\n",
    "package main\n\nfunc (s *S) F(xs ...int) (n int, err error) {\n\tfor i := range xs { n += i<<2 }\n\treturn\n}\n",
    "main :: IO ()\nmain = mapM_ (print . (`div` 2)) [1..10] >>= \\_ -> pure ()\n",
]
_WORDS = [
    "Hello", " world", "the", " The", "don't", "DON'T", "we'll", "I'VE", "'s", "'S", "'ſ", "x'", "'", "''",
    "'re'd", "O'Re", "straße", "naïve", "e\u0301", "a\u0300\u0316\u0301b", "Привет", " мир", "γειά σου", "שלום",
    "مرحبا بالعالم", "नमस\u094dत\u0947", "สว\u0e31สด\u0e35", "你好世界", "こんにちは", "カタカナ", "한국어", "ქართული",
    "ʻokina", "ﬁ", "Ⅷ", "ªº", "𝔘𝔫𝔦", "𐐀𐐨", "ა",
]  # fmt: skip
_DIGITS = [
    "0", "7", "12", "123", "1234", "1234567890", "3.14", "1,000,000", "٣٤٥", "१२३", "௧௨", "一二", "①②③", "½¼",
    "²³", "Ⅳ", "𝟘𝟙", "𒐀",
]  # fmt: skip
_SPACES = [
    " ", "  ", "   ", "       ", "\t", "\t\t", " \t ", "\n", "\n\n", "\n\n\n\n", "\r\n", "\r\n\r\n", "\n\r",
    "\r", " \n", "\n ", "  \n  \n", "\xa0", "\u3000", "\u2028", "\u2029", "\x85", "\u1680", "\u200b", "\ufeff",
    "\x0b", "\x0c", "\x1c", "\x1f",
]  # fmt: skip
_SYMBOLS = [
    "!", "?!", "...", "->", "=>", "(x):\n", "||", "&&", "//", "/*", "*/", "::", "$5", "€", "+", "=", "<", ">",
    "<=>", "^", "~", "`", "```", "_", "__init__", "#", "@", "%", "\\", "\\n", "[", "]", "{", "}", "—", "…",
    "“”", "。", "，", "«»", "©", "™", "→", "∑", "\x00", "\x04", "\x7f", "\u200d", "\u200e", "\u202e", "�",
    "\ufffe", "\U0010ffff", "\ue000", "😀", "👩\u200d👩\u200d👧\u200d👦", "👍🏽", "🇩🇪", "❤\ufe0f", "#\ufe0f\u20e3",
    "🏳\ufe0f\u200d🌈",
]  # fmt: skip
_RARE_PLANES = [0x3, 0x4, 0x8, 0xC, 0xE, 0xF, 0x10]


def _block_texts(rng: random.Random) -> list[str]:
    """One text per 128 code points of the planes that have characters, a few for the others."""
    blocks = [*range(0, 0xD800, 0x80), *range(0xE000, 0x30000, 0x80)]
    blocks += [plane * 0x10000 + i * 0x1000 for plane in _RARE_PLANES for i in range(16)]
    texts = []
    for first in blocks:
        letters = [chr(rng.randrange(first, first + 0x80)) for _ in range(rng.randint(4, 16))]
        texts.append("".join(letter + rng.choice(["", "", " ", "a", "7", "\n"]) for letter in letters))
    return texts


def _mixtures(rng: random.Random, n: int, special: list[str]) -> list[str]:
    kinds = [_WORDS, _WORDS, _DIGITS, _SPACES, _SPACES, _SYMBOLS, special or _SYMBOLS, [chr(c) for c in range(32, 127)]]
    return ["".join(rng.choice(rng.choice(kinds)) for _ in range(rng.randint(1, 14))) for _ in range(n)]


def _mutations(rng: random.Random, n: int, texts: list[str]) -> list[str]:
    """Two texts spliced, with a few characters deleted, doubled or replaced."""
    mutated = []
    for _ in range(n):
        left, right = rng.choice(texts), rng.choice(texts)
        letters = list(left[: rng.randint(0, len(left))] + right[rng.randint(0, len(right)) :])
        for _ in range(min(len(letters), rng.randint(1, 4))):
            i = rng.randrange(len(letters))
            letters[i] = rng.choice(["", letters[i] * 2, rng.choice(_SPACES), rng.choice(_DIGITS)])
        mutated.append("".join(letters))
    return mutated


_LONG_RUNS = ["a", " ", "\n", "ab", "é", "漢", "7", "!", "\t", "\r\n", "a ", "👍🏽"]


def long_texts(size: int = 100_000) -> list[str]:
    """One thing over and over."""
    return [unit * (size // len(unit.encode())) for unit in _LONG_RUNS]


def repository_texts() -> list[str]:
    """Every text file of this repository."""
    root = Path(__file__).parents[2]
    files = [path for kind in ("*.py", "*.md", "*.toml", "*.json") for path in root.rglob(kind)]
    return [path.read_text(encoding="utf-8") for path in sorted(files) if ".git" not in path.parts]


def valid_texts(special: list[str], seed: int = 1, n: int = 4000) -> list[str]:
    """Several thousand texts, at least ``n``.

    Parameters
    ----------
    special
        Special tokens of the vocabulary, put into some of the texts.
    """
    rng = random.Random(seed)
    runs = [c * n for c in (" ", "\t", "\n", "a", "7", "!", "é", "漢", "  \n") for n in (1, 2, 3, 4, 5, 7, 8, 16, 100)]
    fixed = ["", *_CODE, *_WORDS, *_DIGITS, *_SPACES, *_SYMBOLS, *special, *runs]
    fixed += [f"{left}{special_text}{right}" for special_text in special for left in " x\n" for right in " y\n"]
    mixed = _mixtures(rng, 5 * n // 8, special)
    return [*fixed, *_block_texts(rng), *mixed, *_mutations(rng, 3 * n // 8, fixed + mixed)]


def broken_texts(seed: int = 2) -> list[bytes]:
    """Bytes that are mostly not UTF-8: characters cut apart, stray bytes, overlong forms, surrogates."""
    rng = random.Random(seed)
    odd = [
        b"\xe6\xad",
        b"\xc0\x80",
        b"\xc1\x81",
        b"\xe0\x80\xaf",
        b"\xed\xa0\x80",
        b"\xed\xb2\x80",
        b"\xf0\x80\x80\x80",
    ]
    texts = [*odd, *(bytes([byte]) for byte in range(0x80, 0x100))]
    for text in _mixtures(rng, 700, ["x"]):
        data = bytearray(text.encode())
        for _ in range(rng.randint(1, 3)):
            i = rng.randrange(len(data) + 1)
            data[i : i + rng.randint(0, 2)] = rng.choice([b"", rng.choice(odd), bytes([rng.randrange(0x80, 0x100)])])
        texts.append(bytes(data))
    return texts
