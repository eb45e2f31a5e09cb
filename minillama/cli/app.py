"""The program and its commands."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import click

import minillama
from minillama.cli.bench import bench
from minillama.cli.chat import chat
from minillama.cli.embed import embed
from minillama.cli.errors import Failure, describe
from minillama.cli.generate import generate
from minillama.cli.info import info
from minillama.cli.models import models
from minillama.cli.options import DEBUG, debug_option, examples
from minillama.cli.perplexity import perplexity
from minillama.cli.pictures import attention, entropy, inspect_, lens, norms, patch
from minillama.cli.pull import pull
from minillama.cli.quantize import quantize
from minillama.cli.step import step
from minillama.cli.tokenize import tokenize
from minillama.cli.tracing import compare, trace
from minillama.cli.verify import verify
from minillama.cli.warmup import warmup

_INTERRUPTED = 130  # what shells report for a program ended by Ctrl-C


class Program(click.Group):
    """The commands, with errors turned into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a broken pipe and usage errors are left to click, which handles them."""
        _never_fail_to_encode()
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            raise click.exceptions.Exit(_INTERRUPTED) from None
        except Exception as error:
            if ctx.meta.get(DEBUG):
                traceback.print_exc()
                raise click.exceptions.Exit(Failure.exit_code) from None
            raise Failure(describe(error, self.commands[str(ctx.invoked_subcommand)])) from None


def _never_fail_to_encode() -> None:
    """Where the terminal's encoding lacks a character, a question mark is better than a crash."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        'minillama generate "The capital of France is"',
        "minillama chat --system 'Answer in one sentence.'",
        "minillama info path/to/model.gguf",
    ),
)
@click.version_option(minillama.__version__, "-V", "--version", prog_name="minillama")
@debug_option
def main() -> None:
    """Run GGUF language models in pure Python, with the bits of llama.cpp.

    A MODEL is a name of the catalog ("minillama models" lists them), the path of a GGUF file, or
    hf:owner/repo:file-or-quant. What is not on this machine yet is fetched and kept.
    """


_LOOK_INSIDE = (trace, step, compare, lens, attention, norms, patch, entropy, inspect_, perplexity)

for _command in (generate, chat, embed, tokenize, info, models, pull, quantize, bench, verify, warmup, *_LOOK_INSIDE):
    main.add_command(_command)
