"""``minillama quantize``: make a file of smaller tensors."""

from __future__ import annotations

from pathlib import Path

import click

from minillama.cli.loading import find_file
from minillama.cli.notices import Notices
from minillama.cli.options import debug_option, examples
from minillama.cli.output import note, size


@click.command(
    epilog=examples(
        "minillama quantize model-f16.gguf model-q4_k_m.gguf Q4_K_M",
        "minillama quantize f16.gguf q4_k_m.gguf Q4_K_M --imatrix imatrix.gguf",
        "minillama quantize smollm2-135m smol-q8_0.gguf Q8_0 --allow-requantize",
    )
)
@click.argument("source")
@click.argument("target")
@click.argument("mix", metavar="TYPE")
@click.option("--allow-requantize", is_flag=True, help="Convert tensors that are quantized already; errors add up.")
@click.option("--imatrix", metavar="FILE", help="Importance matrix, as llama.cpp's imatrix writes it.")
@click.option("-t", "--threads", type=int, metavar="N", help="Threads (default: the processors we may use).")
@debug_option
def quantize(
    source: str, target: str, mix: str, allow_requantize: bool, imatrix: str | None, threads: int | None
) -> None:
    """Quantize the SOURCE model into the file TARGET, as llama.cpp's quantizer does, byte for byte.

    TYPE is one of llama.cpp's mixes, such as Q8_0, Q6_K, Q4_K_M, Q4_0 or F16. The target appears only when it is
    complete.
    """
    from minillama.hub import console_progress
    from minillama.quantization import quantize_file, read_imatrix

    path = find_file(source)
    importance = None if imatrix is None else read_imatrix(imatrix)
    with Notices(), console_progress(mix) as progress:
        made = quantize_file(
            path,
            Path(target),
            mix,
            allow_requantize=allow_requantize,
            importance=importance,
            threads=threads,
            progress=progress,
        )
    click.echo(made)
    note(f"{size(path.stat().st_size)} to {size(made.stat().st_size)}")
