"""Options that several commands share, and how they become arguments of the library.

Parameters are named as the library names its arguments, so that its messages can be spelled with the options' names.
Values are checked by the library.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from click.core import ParameterSource

DEBUG = "minillama.debug"
DEFAULT_MODEL = "smollm2-135m"

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Decorator = Callable[[_Command], _Command]

_LOADING = ("n_ctx", "extend_context", "threads", "backend", "kv_type", "window_only", "adapters")
_NEEDS_RANDOMNESS = ("top_k", "top_p", "min_p", "seed")
_SAMPLING = (
    "temperature",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "ignore_eos",
    "stop",
    "logit_bias",
    *_NEEDS_RANDOMNESS,
)


def examples(*lines: str) -> str:
    """Return the last section of a help page."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


def _together(*decorators: _Decorator[Any]) -> _Decorator[Any]:
    def decorate(command: _Command) -> _Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def _remember_debug(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[DEBUG] = True


debug_option = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_remember_debug, help="Show tracebacks of errors."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
model_option = click.option(
    "-m", "--model", default=DEFAULT_MODEL, show_default=True, metavar="MODEL", help="Catalog name, path, or hf:..."
)
file_option = click.option(
    "-f", "--file", metavar="PATH", help="Read the text from this file instead; - reads standard input."
)
cache_option = click.option(
    "--cache", "cache_file", metavar="FILE",
    help="Keep what was computed in FILE; a prompt that begins alike computes the rest.",
)  # fmt: skip
special_option = click.option(
    "--special", "parse_special", is_flag=True, help="Special tokens in the text, such as <|im_end|>, count as such."
)


def _parse_adapters(
    _ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, float], ...]:
    """Files and scales; a colon that no number follows belongs to the file's name."""
    found = []
    for value in values:
        path, _, scale = value.rpartition(":")
        try:
            found.append((path, float(scale)) if path else (value, 1.0))
        except ValueError:
            found.append((value, 1.0))
    return tuple(found)


loading_options = _together(
    model_option,
    click.option(
        "-c", "--ctx-size", "--n-ctx", "n_ctx", type=int, metavar="N", help="Context in tokens (default: as trained)."
    ),
    click.option("--extend-context", is_flag=True, help="Allow a context longer than the model was trained for."),
    click.option("-t", "--threads", type=int, metavar="N", help="Threads (default: the processors we may use)."),
    click.option(
        "--kv-type",
        metavar="TYPE[,TYPE]",
        help="How keys and values are stored: f32 (default), f16, bf16, q8_0, q4_0; or of each, as in q8_0,f16.",
    ),
    click.option("--window-only", is_flag=True, help="Layers with a sliding window keep only that: less memory."),
    click.option("--backend", metavar="NAME", help="cpu (default), or reference: plain loops, same bits, slow."),
    click.option(
        "--lora",
        "adapters",
        callback=_parse_adapters,
        multiple=True,
        metavar="FILE[:SCALE]",
        help="Apply a LoRA adapter; can be given several times.",
    ),
    click.option("--no-mmap", is_flag=True, help="Read the whole file first, for network drives."),
)


def text_arguments(*names: str) -> _Decorator[Any]:
    """Return the arguments ``[MODEL] NAME...``: words for the names, before them the model if -m does not name it.

    It is the decorator next to the function. A single name may be left out, or given by --file; it is None then.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        def with_model(words: tuple[str, ...], **options: Any) -> Any:
            by_file = len(names) == 1 and options.get("file") is not None
            n_texts = 0 if by_file and len(words) == 1 else len(names)
            if len(words) == n_texts + 1:
                if click.get_current_context().get_parameter_source("model") is ParameterSource.COMMANDLINE:
                    raise click.UsageError(f"two models: {words[0]!r} and --model {options['model']!r}")
                options["model"], words = words[0], words[1:]
            left_out = not words and len(names) == 1
            if len(words) != n_texts and not left_out:
                raise click.UsageError(f"found {len(words)} words, wanted {shown} (a text of several words in quotes)")
            return command(**dict(zip(names, words or (None,) * len(names), strict=True)), **options)

        shown = " ".join(("[MODEL]", *(name.upper() for name in names)))
        return click.argument("words", nargs=-1, metavar=shown)(functools.update_wrapper(with_model, command))

    return decorate


def _parse_biases(_ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[int, float]:
    biases = {}
    for value in values:
        token, _, amount = value.partition("=")
        try:
            biases[int(token)] = float(amount)
        except ValueError:
            message = f"found {value!r}, wanted a token id and a number, such as 42=-1.5 or 42=-inf"
            raise click.BadParameter(message) from None
    return biases


sampling_options = _together(
    click.option(
        "--temperature", "--temp", "temperature", type=float, metavar="T",
        help="0 (default) takes the likeliest token, above tokens are drawn.",
    ),
    click.option("--top-k", type=int, metavar="K", help="Draw from the K likeliest (default 40; 0: all)."),
    click.option("--top-p", type=float, metavar="P", help="Draw from the likeliest that make up P (default 0.95)."),
    click.option("--min-p", type=float, metavar="P", help="Drop those below P of the likeliest (default 0.05)."),
    click.option("--repeat-penalty", type=float, metavar="X", help="Divide logits of repeated tokens (default 1)."),
    click.option("--frequency-penalty", type=float, metavar="X", help="Subtract for each repetition (default 0)."),
    click.option("--presence-penalty", type=float, metavar="X", help="Subtract once if repeated (default 0)."),
    click.option("--seed", type=int, metavar="N", help="Seed of the draws (default: a fresh one)."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; can be given several times."),
    click.option("--ignore-eos", is_flag=True, help="Go on where the model would end."),
    click.option(
        "--logit-bias", callback=_parse_biases, multiple=True, metavar="ID=VALUE",
        help="Add to a token's logit, -inf bans it; can be given several times.",
    ),
)  # fmt: skip


def max_tokens_option(default: int) -> _Decorator[Any]:
    """Return ``--max-tokens``; -1 stands for no limit, as in llama.cpp."""
    shown = "no limit" if default < 0 else default
    return click.option(
        "-n", "--max-tokens", type=int, default=default, metavar="N",
        help=f"Generate at most N tokens (default {shown}); -1: until the model ends or the context is full.",
    )  # fmt: skip


def loading_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `minillama.load` gets of a command's options, the model and progress aside."""
    return {**_given(options, _LOADING), "use_mmap": not options["no_mmap"]}


def sampling_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``model.stream`` gets of a command's options; those not given are left to the library."""
    arguments = _given(options, _SAMPLING)
    arguments["max_tokens"] = None if options["max_tokens"] == -1 else options["max_tokens"]
    return arguments


def without_effect(options: Mapping[str, Any]) -> list[str]:
    """Return the options that were given but play no part, because nothing is drawn at temperature 0."""
    if options["temperature"]:
        return []
    return [f"--{name.replace('_', '-')}" for name in _given(options, _NEEDS_RANDOMNESS)]


def _given(options: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: options[name] for name in names if not _is_absent(options[name])}


def _is_absent(value: Any) -> bool:
    """Whether an option was not given; 0 is a value like any other."""
    return value is None or value is False or value in ((), {})
