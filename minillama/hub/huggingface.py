"""Models of the Hugging Face Hub: ``hf:owner/repo[@revision][:pattern]``, through huggingface_hub.

The library downloads and checks sizes. The SHA-256 that the Hub states for large files is compared here, because over
plain HTTP the library does not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from minillama.errors import HubError, InvalidInputError, MissingDependencyError
from minillama.hub.cache import cache_folder
from minillama.hub.candidates import select
from minillama.hub.digest import sha256_of
from minillama.hub.growth import largest_file, watching
from minillama.hub.progress import Progress, ignore_progress, piece_reporter, stage_reporter

PREFIX = "hf:"
_SPEC = re.compile(r"hf:(?P<repo>[^/:@\s]+/[^/:@\s]+)(?:@(?P<revision>[^:\s]+))?(?::(?P<pattern>.+))?")
_OFFLINE = "HF_HUB_OFFLINE"
_LISTING_TIMEOUT_SECONDS = 10.0


class _UnreachableError(HubError):
    """The Hub did not answer, or not to the end."""


@dataclass(frozen=True)
class _RemoteFile:
    name: str
    bytes: int
    etag: str  # what the library names the content by: the SHA-256 of large files, a git hash of small ones
    sha256: str | None


def download(spec: str, progress: Progress | None = None) -> Path:
    """Return the local path of a GGUF on the Hub, downloading it if needed.

    Parameters
    ----------
    spec
        ``hf:owner/repo[@revision][:pattern]``; the pattern is a file name, a glob or a quant, see
        `minillama.hub.candidates.select`.
    progress
        Told about bytes and stage, from another thread.

    Returns
    -------
    Path
        The file, or the first one of a split set whose others lie beside it.

    Raises
    ------
    HubError
        If there is no such repository, revision or file, or it cannot be fetched.
    MissingDependencyError
        If huggingface_hub is not installed.
    InvalidInputError
        If `spec` is not of that form.

    Notes
    -----
    ``HF_ENDPOINT``, ``HF_HUB_OFFLINE`` and the library's token variables are honoured. When the Hub does not answer,
    what is in the cache is used.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise InvalidInputError(f"{spec!r} is not of the form hf:owner/repo[@revision][:file-or-quant]")
    _require_library()
    repo, revision, pattern = match["repo"], match["revision"], match["pattern"]
    try:
        files = _remote_files(repo, revision)
    except _UnreachableError as error:
        return _from_cache(repo, revision, pattern, error)
    chosen = [files[name] for name in _select(repo, list(files), pattern)]
    return _fetch(repo, revision, chosen, progress or ignore_progress)


def _require_library() -> None:
    try:
        import huggingface_hub  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "hf: models need huggingface_hub, which is not installed: pip install 'minillama[hub]'"
        ) from None


def _select(repo: str, names: list[str], pattern: str | None) -> list[str]:
    try:
        return select(names, pattern)
    except HubError as error:
        raise HubError(f"{PREFIX}{repo}: {error}") from None


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None  # the library reads it once, at import


def _remote_files(repo: str, revision: str | None) -> dict[str, _RemoteFile]:
    if os.environ.get(_OFFLINE, "").upper() in {"1", "TRUE", "YES", "ON"}:
        raise _UnreachableError(f"{_OFFLINE} is set")
    from huggingface_hub import HfApi

    with _library_errors(repo, revision):
        info = HfApi(endpoint=_endpoint()).model_info(
            repo, revision=revision, files_metadata=True, timeout=_LISTING_TIMEOUT_SECONDS
        )
    files = {}
    for file in info.siblings or []:
        sha256 = file.lfs.sha256 if file.lfs else None
        files[file.rfilename] = _RemoteFile(file.rfilename, file.size or 0, sha256 or file.blob_id or "", sha256)
    return files


@contextmanager
def _library_errors(repo: str, revision: str | None) -> Iterator[None]:
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    where = f"{PREFIX}{repo}"
    try:
        yield
    except HFValidationError as error:
        raise InvalidInputError(f"{where}: {_first_line(error)}") from error
    except GatedRepoError as error:
        raise HubError(f"{where} is gated: accept its terms on the Hub, then set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise HubError(f"{where}: no such repository, or it is private and HF_TOKEN does not open it") from error
    except RevisionNotFoundError as error:
        raise HubError(f"{where} has no revision {revision!r}") from error
    except HfHubHTTPError as error:
        kind = _UnreachableError if error.response is not None and error.response.status_code >= 500 else HubError
        raise kind(f"{where}: {_first_line(error)}") from error
    except Exception as error:  # of requests, httpx or httpx2, depending on the library's major version
        raise _UnreachableError(f"{where}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _library_cache() -> Path:
    return cache_folder() / "hf"


def _repository_folder(repo: str) -> Path:
    return _library_cache() / f"models--{repo.replace('/', '--')}"


def _from_cache(repo: str, revision: str | None, pattern: str | None, why: HubError) -> Path:
    folder = _repository_folder(repo)
    reference = folder / "refs" / (revision or "main")
    commit = reference.read_text().strip() if reference.is_file() else revision
    snapshot = folder / "snapshots" / (commit or "main")
    names = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
    if not names:
        raise HubError(f"{why}; and {PREFIX}{repo} is not in the cache ({folder})") from why
    return snapshot / _select(repo, names, pattern)[0]


def _fetch(repo: str, revision: str | None, files: list[_RemoteFile], progress: Progress) -> Path:
    report = stage_reporter(progress, sum(file.bytes for file in files), "downloading")
    done = 0
    paths = []
    for file in files:
        paths.append(_fetch_file(repo, revision, file, piece_reporter(report, done, file.bytes)))
        done += file.bytes
    return paths[0]


def _fetch_file(repo: str, revision: str | None, file: _RemoteFile, report: Callable[[int], None]) -> Path:
    from huggingface_hub import hf_hub_download

    blobs = _repository_folder(repo) / "blobs"
    silent = (blobs / file.etag).exists()  # nothing to fetch, so nothing to report

    seen = 0

    def look() -> None:
        nonlocal seen
        if not silent:
            # A complete file loses its ".incomplete" name: what was seen once is not taken back.
            seen = max(seen, largest_file(blobs, f"{file.etag}*.incomplete"))
            report(seen)

    with _library_errors(repo, revision), _without_its_bars(), watching(look):
        path = hf_hub_download(repo, file.name, revision=revision, cache_dir=_library_cache(), endpoint=_endpoint())
    if not silent:
        report(file.bytes)
    _verify_once(Path(path), file)
    return Path(path)


@contextmanager
def _without_its_bars() -> Iterator[None]:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _verify_once(path: Path, file: _RemoteFile) -> None:
    """Compare the hash of a file that was just downloaded; a marker says that it was done."""
    marker = cache_folder() / "verified" / (file.sha256 or "")
    if file.sha256 is None or marker.is_file():
        return
    found = sha256_of([path])
    if found != file.sha256:
        path.resolve().unlink()  # the content, which `path` may only link to
        path.unlink(missing_ok=True)
        raise HubError(
            f"{file.name}: SHA-256 of what arrived is {found}, expected {file.sha256}; it was removed, fetch it again"
        )
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
