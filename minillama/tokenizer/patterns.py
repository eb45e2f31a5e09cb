r"""Pre-tokenizers of byte-pair encoding by ``tokenizer.ggml.pre``, and what else llama.cpp ties to that name.

The patterns are those of llama.cpp's vocabulary loader; where it runs hand-written code instead of a pattern, the
pattern here is what that code does. ``\p{NotLower}`` and ``\p{NotUpper}`` are the letters but ``a-z`` or ``A-Z``:
llama.cpp knows no other case.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from minillama.errors import UnsupportedError
from minillama.tokenizer.pretokenize import (
    Cutter,
    PreTokenizer,
    WordStyle,
    digit_groups,
    pattern,
    runs,
    trailing_blanks,
    words,
)

_CONTRACTION = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_BLANKS = r"\s+(?!\S)|\s+"
_LINES = rf"\s*[\r\n]+|{_BLANKS}"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+"

_GPT2 = rf"'(?:[stmd]|re|ve|ll)| ?[\p{{L}}]+| ?[\p{{N}}]+|{_SYMBOLS}|{_BLANKS}"
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK_OF_DEEPSEEK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DIGIT, _UP_TO_THREE = r"[\p{N}]", r"[\p{N}]{1,3}"
_EACH_DIGIT, _DIGITS, _THREE_DIGITS = runs(_DIGIT, 1), runs(_DIGIT), runs("[0-9]", 3)
_LINE = r"[^\n]+|[\n]+"


def _words(digits: str, contraction: str = _CONTRACTION + "|") -> str:
    """Words of Llama 3 and Qwen 2: one character of any other kind may precede the letters."""
    return rf"{contraction}[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}]+|{digits}|{_SYMBOLS}[\r\n]*|{_LINES}"


def _cased(upper: str, lower: str, digits: str, contraction: str = f"(?:{_CONTRACTION})?") -> str:
    """Words that end where an upper-case letter follows a lower-case one (Tekken, GPT-4o)."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}[{upper}]*[{lower}]+{contraction}|{lead}[{upper}]+[{lower}]*{contraction}"
        rf"|{digits}|{_SYMBOLS}[\r\n/]*|{_LINES}"
    )


_LLAMA3, _QWEN2 = _words(_UP_TO_THREE), _words(_DIGIT)
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|{_DIGIT}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}"
)
_MARKED = r"[\p{L}\p{M}]"
_MARKED_WORDS = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
_ANY_CASE = _cased(r"\p{L}\p{M}", r"\p{L}\p{M}", _UP_TO_THREE)
_GPT4O = _cased(r"\p{NotLower}", r"\p{NotUpper}", _UP_TO_THREE)
_KIMI = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{LNotHan}}]+(?:{_CONTRACTION})?|{_UP_TO_THREE}|{_SYMBOLS}[\r\n]*|{_LINES}"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_CASED_LETTERS = (  # of the languages DeepSeek LLM counts as European
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d"
    "\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
    "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4"
    "\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184"
    "\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_ASIAN_LETTERS = (  # of AFMoE; the third range begins at U+8C48 because its source text was normalized
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_ASIAN_SCRIPTS = (  # of Youtu
    "[\uac00-\ud7a3\u3131-\u318e]+"
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|" + _CJK
)
_FALLING_BLANKS = "|".join(rf"\s{{{n}}}(?!\S)" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
_LEADING_GROUP = digit_groups(_DIGIT, from_the_front=True)
_GPT2_WORDS = words(_GPT2, WordStyle(1, lead=False))
_LLAMA3_WORDS = words(_LLAMA3, WordStyle(2, lead=True, max_digits=3))
_QWEN2_WORDS = words(_QWEN2, WordStyle(2, lead=True, max_digits=1))

_PATTERNS: dict[str, tuple[str | Cutter, ...]] = {
    "default": (runs(r"[\p{P}$+<=>\^~|]"), _GPT2_WORDS, _DIGITS, _THREE_DIGITS),
    "gpt-2": (_GPT2_WORDS,),
    "llama-bpe": (_LLAMA3_WORDS,),
    "qwen2": (_QWEN2_WORDS,),
    "qwen35": (words(_QWEN35, WordStyle(2, lead=True, max_digits=1, letters=rb"[\p{L}\p{M}]")),),
    "smollm": (_EACH_DIGIT, _GPT2_WORDS),
    "falcon": (runs(r"[\p{P}$+<=>\^~|`]"), _GPT2_WORDS, _THREE_DIGITS),
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?[{_CASED_LETTERS}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        trailing_blanks,
        _CJK_OF_DEEPSEEK,
        _DIGITS,
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?[\p{L}]+", r"\s?[\p{P}]+", _CJK_OF_DEEPSEEK, _EACH_DIGIT),
    "deepseek-v3": (_UP_TO_THREE, _CJK, rf"{_MARKED_WORDS}[\r\n]*|{_LINES}"),
    "spark2_5": (_UP_TO_THREE, _CJK, rf"{_MARKED_WORDS}|[\r\n]|{_BLANKS}", _EACH_DIGIT),
    "afmoe": (_LEADING_GROUP, _ASIAN_LETTERS, rf"{_MARKED_WORDS}[\r\n]*|{_LINES}"),
    "youtu": (_ASIAN_SCRIPTS, _cased(r"\p{L}\p{M}", r"\p{L}\p{M}", _DIGIT)),
    "tiny_aya": (_LEADING_GROUP, _ANY_CASE),
    # Behind a blank no line break can follow in the same run: saying so keeps long runs from taking quadratic time.
    "jais-2": (_LLAMA3.replace(_LINES, rf"(?<![^\S\r\n])\s*[\r\n]+|{_FALLING_BLANKS}|\s"),),
    "poro-chat": (_BLOOM,),
    "viking": (_BLOOM, _EACH_DIGIT),
    "tekken": (_cased(r"\p{NotLower}", r"\p{NotUpper}", _DIGIT, contraction=""),),
    "gpt-4o": (_GPT4O,),
    "granite-embed-multi-97m": (_cased(r"\p{NotLower}\p{M}", r"\p{NotUpper}\p{M}", _UP_TO_THREE),),
    "chameleon": (
        "<sentinel:[0-9]+>",
        "IMGIMG[A-I]{1,4}Z",
        "[\\t\\n]|    |  ",
        _DIGIT,
        r"[\p{P}!-/:-@\[-`{-~]",
        _GPT2_WORDS,
    ),
    "kimi-k2": (_KIMI,),
    "superbpe": (_DIGITS, digit_groups("[0-9]", from_the_front=False)),
    "bailingmoe": (_QWEN2.replace(r"\s*[\r\n]+", r"\s*[\r\n]"),),
    "seed-coder": (_QWEN2.replace(rf"{_SYMBOLS}[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+"),),
    "ufakzeka": (words(_words(_DIGIT, contraction=""), WordStyle(0, lead=True, max_digits=1)),),
    "laguna": (_LINE, _QWEN2_WORDS),
    "exaone-moe": (
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}][\p{{M}}]*(?: ?[\p{{L}}][\p{{M}}]*)*|{_DIGIT}"
        rf"|{_SYMBOLS}[\r\n/]?|\s*[\r\n]|{_BLANKS}",
    ),
    "minicpm5": (_UP_TO_THREE, words(_words(rf"{_DIGIT}+"), WordStyle(2, lead=True))),
    "gemma4": (_LINE,),
    "whitespace": (r"\S+",),
}


@dataclass(frozen=True)
class PreTokenization:
    """What ``tokenizer.ggml.pre`` decides.

    Attributes
    ----------
    patterns
        Name of the pre-tokenizer; several values of ``tokenizer.ggml.pre`` share one.
    ignore_merges
        A word that is a token as a whole is that token, whatever the merges say.
    clean_spaces
        `Tokenizer.detokenize` takes spaces before punctuation away.
    add_bos, add_sep
        Whether these tokens are added when the file does not say; ``always_bos``: even when it says no.
    names_bos
        Whether token 11 begins a text when the file names no such token.
    byte_letters
        Whether the vocabulary is spelled in the byte alphabet; else in UTF-8, with ``<0x0A>`` for bytes.
    escape_spaces
        Whether spaces become ``▁`` first.
    newline_runs
        A run of line breaks that is a token is that token.
    """

    patterns: str
    ignore_merges: bool = False
    clean_spaces: bool = True
    add_bos: bool = False
    always_bos: bool = False
    add_sep: bool = False
    names_bos: bool = True
    byte_letters: bool = True
    escape_spaces: bool = False
    newline_runs: bool = False

    @property
    def pre_tokenizer(self) -> PreTokenizer:
        """How text is cut into words."""
        return _pre_tokenizer(self.patterns)


@functools.cache
def _pre_tokenizer(patterns: str) -> PreTokenizer:
    cutters = (pattern(part) if isinstance(part, str) else part for part in _PATTERNS[patterns])
    return PreTokenizer(*cutters)


_P = PreTokenization
# Values of tokenizer.ggml.pre that llama.cpp treats in every respect alike.
_NAMES: dict[str, PreTokenization] = {
    "default": _P("default"),
    "minicpm5": _P("minicpm5", ignore_merges=True),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": _P(
        "llama-bpe", ignore_merges=True, add_bos=True
    ),
    "dbrx smaug-bpe": _P("llama-bpe"),
    "chatglm-bpe": _P("llama-bpe", names_bos=False),
    "glm4 glm5": _P("llama-bpe", names_bos=False, ignore_merges=True),
    "deepseek-llm": _P("deepseek-llm", clean_spaces=False),
    "deepseek-coder": _P("deepseek-coder", clean_spaces=False),
    "deepseek-v3 hunyuan-dense hy_v4 joyai-llm": _P("deepseek-v3", clean_spaces=False),
    "spark2_5": _P("spark2_5", clean_spaces=False),
    "youtu": _P("youtu", clean_spaces=False, ignore_merges=True),
    "falcon": _P("falcon"),
    "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert mpt olmo jais exaone4": _P(
        "gpt-2"
    ),
    "trillion granite-docling": _P("gpt-2", clean_spaces=False),
    "jina-v1-en jina-v2-code roberta-bpe": _P("gpt-2", add_sep=True),
    "starcoder refact codeshell exaone minerva-7b mellum2": _P("smollm"),
    "command-r smollm": _P("smollm", clean_spaces=False),
    "jais-2": _P("jais-2"),
    "gemma4 granite-embed-multi-311m": _P(
        "gemma4", byte_letters=False, escape_spaces=True, always_bos=True, newline_runs=True
    ),
    "sarvam-moe": _P("gemma4", byte_letters=False, escape_spaces=True, clean_spaces=False),
    "whitespace": _P("whitespace", byte_letters=False),
    "stablelm2 megrez": _P("qwen2"),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan grok-2 solar-open": _P("qwen2", clean_spaces=False),
    "qwen35": _P("qwen35", clean_spaces=False),
    "poro-chat": _P("poro-chat", clean_spaces=False),
    "bloom gpt3-finnish": _P("poro-chat"),
    "viking": _P("viking", clean_spaces=False),
    "tekken": _P("tekken", clean_spaces=False, ignore_merges=True, add_bos=True),
    "exaone-moe": _P("exaone-moe"),
    "chameleon": _P("chameleon", clean_spaces=False, add_bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": _P("gpt-4o", clean_spaces=False),
    "granite-embed-multi-97m": _P("granite-embed-multi-97m", clean_spaces=False, ignore_merges=True),
    "tiny_aya cohere2moe": _P("tiny_aya", clean_spaces=False),
    "superbpe": _P("superbpe", clean_spaces=False),
    "bailingmoe bailingmoe2 llada-moe": _P("bailingmoe", clean_spaces=False),
    "seed-coder": _P("seed-coder", clean_spaces=False),
    "kimi-k2": _P("kimi-k2", clean_spaces=False),
    "ufakzeka": _P("ufakzeka", clean_spaces=False),
    "afmoe": _P("afmoe", clean_spaces=False),
    "laguna": _P("laguna", clean_spaces=False),
}
BY_NAME = {name: pre for names, pre in _NAMES.items() for name in names.split()}


def pre_tokenization(name: str) -> PreTokenization:
    """Return what a ``tokenizer.ggml.pre`` value means.

    Raises
    ------
    UnsupportedError
        For a name that is not known; the message lists those that are.
    """
    try:
        return BY_NAME[name]
    except KeyError:
        raise UnsupportedError(
            f"pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported; pass pre='default' for llama.cpp's "
            f"fallback, or one of: {', '.join(sorted(BY_NAME))}"
        ) from None
