"""Record the figures that llama.cpp's own program for perplexity prints, built as the baseline build is.

    python -m tests.reference.record_perplexity [FOLDER WITH LLAMA.CPP'S SOURCE AND BUILD]    # writes perplexity.json

Without a folder the source is fetched and built, which takes about ten minutes on two cores. The recording is
committed, so that anyone can compare without building it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from minillama.hub import pull
from tests.reference.build_llama_cpp import FLAGS, VERSION
from tests.reference.texts import WINDOW_TEXTS

PATH = Path(__file__).with_name("perplexity.json")
TEXT = WINDOW_TEXTS["window"]
# Gemma's texts begin with a token of their own, the others' do not.
RUNS = [("smollm2-135m", 128), ("gemma3-270m", 100)]
N_CHUNKS = 2
_WITHOUT = ["LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_SERVER", "LLAMA_OPENSSL"]
_FIGURE = re.compile(r"Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)")


def build(folder: Path) -> None:
    """Fetch the source that llama-cpp-python carries, and build the program."""
    requirement = ["--no-deps", "--no-binary", "llama-cpp-python", f"llama-cpp-python=={VERSION}"]
    subprocess.run([sys.executable, "-m", "pip", "download", "--no-cache-dir", "-d", folder, *requirement], check=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    source = next(folder.glob("llama_cpp_python-*/vendor/llama.cpp"))
    flags = [*FLAGS["baseline"].split(), *(f"-D{name}=OFF" for name in _WITHOUT)]
    subprocess.run(["cmake", "-S", source, "-B", folder / "build", "-DCMAKE_BUILD_TYPE=Release", *flags], check=True)
    target = ["--target", "llama-perplexity", "--parallel", "2"]
    subprocess.run(["cmake", "--build", folder / "build", *target], check=True)


def record(program: Path, model: str, n_ctx: int) -> dict[str, Any]:
    """Record one run."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", newline="") as text:
        text.write(TEXT)
        text.flush()
        options = ["-fa", "off", "-ctk", "f32", "-ctv", "f32", "-c", n_ctx, "-b", n_ctx, "-t", 2, "--chunks", N_CHUNKS]
        command = [str(word) for word in (program, "-m", pull(model), *options, "-f", text.name)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = _FIGURE.search(done.stdout + done.stderr)
    assert found is not None, done.stderr
    return {"model": model, "n_ctx": n_ctx, "n_chunks": N_CHUNKS, "perplexity": found[1], "error": found[2]}


def main(folder: Path) -> None:
    """Record all."""
    if not (program := folder / "build" / "bin" / "llama-perplexity").exists():
        build(folder)
    lines = ",\n".join(json.dumps(record(program, model, n_ctx)) for model, n_ctx in RUNS)
    made_with = {"llama-cpp-python": VERSION, "cmake_args": FLAGS["baseline"], "flash_attention": "off", "cache": "f32"}
    PATH.write_text(f'{{"made_with": {json.dumps(made_with)},\n"runs": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
