"""Level 2: ids of awkward texts, ours and llama.cpp's."""

from __future__ import annotations

from minillama.errors import MinillamaError, TokenizerError
from minillama.gguf import GGUFFile
from minillama.tokenizer import Tokenizer
from minillama.verify.llama_cpp import LlamaCpp
from minillama.verify.report import Level, TokenDifference

# Spaces and newlines in runs, digits, scripts, combining marks, joined emoji, code, specials, controls.
CORPUS = (
    "Hello world",
    " leading and trailing ",
    "a  b   c    d     e",
    "\n",
    "\n\n\n",
    "x\r\ny\r\n\r\nz",
    "\t\t\tindented\t\ttabs",
    "1 12 123 1234 12345 3.14159 1,000,000 0x1F 1e-5",
    "I'm you're he'd WE'LL it's IT'S o'clock '' '",
    "Größe straße naïve café Ångström İstanbul ﬁne ǅ",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢",
    "你好，世界！今天天气怎么样？",
    "こんにちは世界 カタカナ ひらがな",
    "Привет, мир! Съешь ещё этих мягких булок",
    "مرحبا بالعالم ١٢٣٤ שלום עולם",
    "नमस्ते दुनिया १२३ สวัสดีชาวโลก 안녕하세요",
    "😀 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷 ❤️",
    "def f(x):\n    return x**2  # square\n\nclass A:\n\tpass\n",
    '{"key": [1, 2.5, true, null], "text": "line\\nbreak"}',
    "<html><body class='x'>&nbsp;</body></html>",
    "https://example.org/path?q=a+b%20c#frag",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|><s></s>[INST]",
    "!!!???...,,,;;;:::---___===+++***///\\\\\\|||~~~```",
    "ſ K Å ℌ ½ ² ①  　\u200b‍ end",
    "\x01\x02\x1f\x7f control",
    "e" * 200,
    " " * 200,
    "ab" * 100,
)


def verify_tokens(file: GGUFFile, llama: LlamaCpp) -> Level:
    """Compare the ids of every text of the corpus, with special tokens taken as text and as tokens."""
    level = Level("tokens", against=f"llama-cpp-python {llama.version}")
    try:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    except (TokenizerError, MinillamaError) as error:
        level.missing = str(error)
        return level
    compared = 0
    for parse_special in (False, True):
        theirs = llama.tokenize(file.path, CORPUS, parse_special=parse_special)
        for text, expected in zip(CORPUS, theirs, strict=True):
            ours = tokenizer.encode(text, parse_special=parse_special)
            compared += 1
            if ours != expected:
                level.tokens.append(TokenDifference(text, ours, expected))
    level.passed = not level.tokens
    level.summary = f"{compared - len(level.tokens)} of {compared} texts have the same ids"
    return level
