"""Vocabulary-only GGUF files and Unicode tables of llama.cpp, out of the sdist of llama-cpp-python.

Usage: ``python -m tests.reference.tokenizer_vocabs`` prints the folder they are in, fetching them the first time.
"""

from __future__ import annotations

import fnmatch
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import platformdirs

from tests.reference.build_llama_cpp import VERSION

_WANTED = ("*/vendor/llama.cpp/models/ggml-vocab-*", "*/vendor/llama.cpp/src/unicode-data.cpp")


def cache_folder() -> Path:
    """Folder of everything minillama fetches."""
    return Path(os.environ.get("MINILLAMA_CACHE") or platformdirs.user_cache_dir("minillama"))


def ensure_vocabs() -> Path:
    """Folder with ``ggml-vocab-*.gguf``, their ``.inp`` and ``.out``, and ``unicode-data.cpp``."""
    folder = cache_folder() / "llama-cpp" / f"{VERSION}-vocabs"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python"]
        subprocess.run([*command, "-d", temporary, f"llama-cpp-python=={VERSION}"], check=True, stdout=sys.stderr)
        (sdist,) = Path(temporary).glob("*.tar.gz")
        extracted = Path(temporary, "vocabs")
        extracted.mkdir()
        with tarfile.open(sdist) as archive:
            for member in archive:
                data = archive.extractfile(member) if member.isfile() else None
                if data and any(fnmatch.fnmatch(member.name, pattern) for pattern in _WANTED):
                    (extracted / Path(member.name).name).write_bytes(data.read())
        extracted.rename(folder)
    return folder


if __name__ == "__main__":
    print(ensure_vocabs())
