"""``minillama generate``: continue a text."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from minillama.cli.inputs import read_prompt
from minillama.cli.loading import load_model
from minillama.cli.notices import Notices
from minillama.cli.options import (
    cache_option,
    debug_option,
    examples,
    file_option,
    json_option,
    loading_options,
    max_tokens_option,
    sampling_arguments,
    sampling_options,
    special_option,
)
from minillama.cli.output import counted, note, print_json
from minillama.cli.streaming import TextOutput

if TYPE_CHECKING:
    from minillama.generate import Generation, LanguageModel, PromptCache, Timings
    from minillama.generate.loop import Run
    from minillama.sampling import TokenLogprobs
    from minillama.tokenizer import Tokenizer


@click.command(
    epilog=examples(
        'minillama generate "The capital of France is"',
        'minillama generate "Once upon a time" -n 64 --temp 0.8 --seed 1',
        "git diff | minillama generate -f - --json",
        "minillama generate -f long.txt --cache long.kv",
    )
)
@click.argument("prompt", required=False)
@max_tokens_option(128)
@loading_options
@sampling_options
@special_option
@cache_option
@file_option
@click.option("--logprobs", type=int, metavar="N", help="With --json: log probabilities, and those of N alternatives.")
@click.option("--stats", is_flag=True, help="Print speeds on stderr also when stdout is not a terminal.")
@json_option
@debug_option
def generate(prompt: str | None, file: str | None, as_json: bool, stats: bool, **options: Any) -> None:
    """Continue PROMPT, with the likeliest tokens unless --temp says otherwise.

    The text goes to stdout as it comes, everything else to stderr. On a terminal the prompt is shown before it.
    """
    if options["logprobs"] is not None and not as_json:
        raise click.UsageError("--logprobs needs --json")
    from minillama.generate import PromptCache

    text = read_prompt(prompt, file)
    with Notices() as notices:
        model = load_model(options)
        kept = None if options["cache_file"] is None else PromptCache(model, options["cache_file"])
        run = model.start(
            **_prompt(model, text, options["parse_special"], kept),
            logprobs=options["logprobs"],
            **sampling_arguments(options),
        )
        if as_json:
            for _ in run.pieces():
                pass
            notices.hide()
            print_json(_report(run.result(), options["model"], model.tokenizer))
        else:
            _stream(run, text, TextOutput(notices))
        if kept is not None:
            kept.save()
    if stats or (sys.stdout.isatty() and sys.stderr.isatty() and not as_json):
        note(_summary(run.result(), notices.compiled > 0))


def _prompt(model: LanguageModel, text: str, parse_special: bool, kept: PromptCache | None) -> dict[str, Any]:
    """The prompt as arguments of ``model.start``: what a cache holds of it is not given again."""
    if kept is None:
        return {"prompt": text, "parse_special": parse_special}
    ids = model.tokenizer.encode(text, parse_special=parse_special)
    shared = kept.begin(ids) if ids else 0
    return {"prompt": ids[shared:], "cache": kept.cache, "earlier": ids[:shared]}


def _stream(run: Run, prompt: str, output: TextOutput) -> None:
    try:
        for i, piece in enumerate(run.pieces()):
            if i == 0:  # not earlier: the line about compiling is in its place until then
                output.echo_prompt(prompt)
            output.write(piece.text)
    finally:  # also after Ctrl-C, so that the shell's prompt gets a line of its own
        if output.is_terminal:
            output.end_line()


def _summary(result: Generation, compiled: bool) -> str:
    timings = result.timings
    prompt_rate = "(and compiling)" if compiled else f"{timings.prompt_rate:.1f}/s"
    return (
        f"{counted(timings.prompt_tokens, 'prompt token')} {prompt_rate}, "
        f"{len(result.tokens)} generated {timings.generated_rate:.1f}/s, "
        f"first token {timings.prompt_seconds:.2f} s, {result.finish_reason}"
    )


def _report(result: Generation, model: str, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "model": model,
        "text": result.text,
        "tokens": list(result.tokens),
        "prompt_tokens": list(result.prompt_tokens),
        "finish_reason": result.finish_reason,
        "seed": result.seed,
        "timings": _timings(result.timings),
        "logprobs": None if result.logprobs is None else [_logprobs(entry, tokenizer) for entry in result.logprobs],
    }


def _timings(timings: Timings) -> dict[str, Any]:
    return {**asdict(timings), "prompt_rate": timings.prompt_rate, "generated_rate": timings.generated_rate}


def _logprobs(entry: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, Any]:
    def named(token: int, logprob: float) -> dict[str, Any]:
        return {"token": token, "text": tokenizer.decode([token], continues=True), "logprob": logprob}

    return {**named(entry.token, entry.logprob), "top": [named(*alternative) for alternative in entry.top]}
