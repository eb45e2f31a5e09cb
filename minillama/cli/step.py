"""``minillama step``: go through a pass by hand."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import click

from minillama.cli.inputs import decoded, read_prompt
from minillama.cli.loading import load_reader
from minillama.cli.options import debug_option, examples, file_option, loading_options, special_option, text_arguments
from minillama.cli.output import counted, visible

_FAILED = 2


@click.command(
    epilog=examples(
        'minillama step "The capital of France is"',
        'minillama step qwen2.5-coder-0.5b "Hello" --commands script.txt',
        'NUMBA_DISABLE_JIT=1 minillama step "Hi" --backend reference',
    )
)
@click.option("--commands", metavar="FILE", help="Do the commands in this file instead of asking; # begins a comment.")
@click.option("--llama-cpp", metavar="FOLDER", help="Folder that llama_cpp is imported from, to stop where it differs.")
@loading_options
@special_option
@file_option
@debug_option
@text_arguments("prompt")
def step(prompt: str | None, file: str | None, commands: str | None, llama_cpp: str | None, **options: Any) -> None:
    """Go through a pass over PROMPT operation by operation: look at values, change them, go back.

    "help" lists the commands. Breakpoints stop at names, layers, the first NaN, large values, or the first difference
    from a recorded run ("minillama trace --save") or from llama.cpp.
    """
    from minillama.cli.debugger import Debugger
    from minillama.cli.tracing import llama_cpp_run

    text = read_prompt(prompt, file)
    script = None if commands is None else io.StringIO(decoded(Path(commands).read_bytes(), commands))
    model = load_reader(options)
    stepper = model.step(text, parse_special=options["parse_special"])
    theirs = None if llama_cpp is None else lambda: llama_cpp_run(model, options["model"], stepper.ids, llama_cpp)
    streams = script or sys.stdin, sys.stdout
    debugger = Debugger(model, stepper, *streams, echo=script is not None, llama_cpp=theirs)
    debugger.say(
        f"{visible(str(model.config.name))}, {counted(len(stepper.ids), 'token')}, "
        f"{counted(len(stepper.operations), 'operation')}"
    )
    try:
        debugger.cmdloop()
    finally:
        stepper.abort()
    if script is not None and debugger.failed:
        raise click.exceptions.Exit(_FAILED)
