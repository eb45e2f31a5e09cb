"""hf: models, against a server of our own that answers what huggingface_hub asks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from minillama.errors import HubError, InvalidInputError, MissingDependencyError
from minillama.hub import resolve

BIG = os.urandom(300_000)
SPLIT = {f"s/m-Q6_K-{number:05}-of-00003.gguf": bytes([number]) * 1000 for number in (1, 2, 3)}
FILES = {"m-Q4_K_M.gguf": BIG, "m-Q4_K_S.gguf": b"small" * 10, "README.md": b"hello", **SPLIT}


@pytest.fixture(autouse=True)
def repository(hub):
    return hub.add("owner/repo", FILES)


def gets(hub) -> list[tuple[str, str | None]]:
    return [
        (path.rsplit("/", 1)[-1], span) for method, path, span in hub.requests if method == "GET" and "api" not in path
    ]


@pytest.mark.parametrize("pattern", ["m-Q4_K_M.gguf", "q4_k_m", "*_M.gguf"])
def test_one_file(hub, cache: Path, pattern: str) -> None:
    reports = []
    path = resolve(f"hf:owner/repo:{pattern}", lambda *report: reports.append(report))
    assert path.name == "m-Q4_K_M.gguf"
    assert path.read_bytes() == BIG
    assert path.is_relative_to(cache / "hf")
    assert reports[-1] == (len(BIG), len(BIG), "downloading")
    assert gets(hub) == [("m-Q4_K_M.gguf", None)]


def test_bytes_are_seen_while_they_arrive(hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
    hub.pause = 0.4
    seen = []
    resolve("hf:owner/repo:q4_k_m", lambda done, total, stage: seen.append(done))
    assert any(100_000 < done < 200_000 for done in seen)
    assert seen == sorted(seen)


def test_a_second_time_nothing_is_fetched_or_reported(hub) -> None:
    first = resolve("hf:owner/repo:q4_k_m")
    hub.requests.clear()
    hub.pause = 0.15  # longer than the time between two reports
    reports = []
    assert resolve("hf:owner/repo:q4_k_m", lambda *report: reports.append(report)) == first
    assert (gets(hub), reports) == ([], [])


def test_a_split_set_is_fetched_whole(hub) -> None:
    reports = []
    path = resolve("hf:owner/repo:Q6_K", lambda *report: reports.append(report))
    assert path.name == "m-Q6_K-00001-of-00003.gguf"
    assert sorted(shard.name for shard in path.parent.iterdir()) == sorted(name.removeprefix("s/") for name in SPLIT)
    assert reports[-1] == (3000, 3000, "downloading")


def test_a_revision(hub, repository) -> None:
    repository.revisions += ("v2",)
    assert resolve("hf:owner/repo@v2:q4_k_s").read_bytes() == b"small" * 10
    assert {path.split("/")[-2] for method, path, _ in hub.requests if method == "HEAD"} == {"v2"}
    assert resolve(f"hf:owner/repo@{hub.commit}:q4_k_s").parent.name == hub.commit


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hf:owner/repo", r"^hf:owner/repo: 3 models match a GGUF file, wanted one of: m-Q4_K_M\.gguf, m-Q4_K_S"),
        ("hf:owner/repo:Q4_K", r"^hf:owner/repo: no model matches 'Q4_K'; there are: m-Q4_K_M\.gguf, m-Q4_K_S"),
        ("hf:owner/repo:m-*.gguf", r"^hf:owner/repo: 3 models match 'm-\*\.gguf'"),
        (
            "hf:owner/other:Q4_0",
            r"^hf:owner/other: no such repository, or it is private and HF_TOKEN does not open it$",
        ),
        ("hf:owner/repo@v9:Q4_0", r"^hf:owner/repo has no revision 'v9'$"),
    ],
)
def test_what_is_not_there_is_said(spec: str, message: str) -> None:
    with pytest.raises(HubError, match=message):
        resolve(spec)


def test_a_gated_repository(repository) -> None:
    repository.gated = True
    with pytest.raises(HubError, match=r"^hf:owner/repo is gated: accept its terms"):
        resolve("hf:owner/repo:q4_k_m")


@pytest.mark.parametrize("spec", ["hf:", "hf:repo", "hf:a/b/c", "hf:a/b:", "hf:a/b@:q", "hf:a b/c", "hf:-a-/b"])
def test_other_forms_are_refused(spec: str) -> None:
    with pytest.raises(InvalidInputError, match="hf:"):
        resolve(spec)


def test_the_token_is_sent(hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    resolve("hf:owner/repo:q4_k_s")
    assert set(hub.authorizations) == {"Bearer secret"}


def test_a_cut_connection_is_resumed(hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)  # what is lost at a cut
    hub.cut_after = 100_000
    assert resolve("hf:owner/repo:q4_k_m").read_bytes() == BIG
    assert [span for _, span in gets(hub)] == [None, "bytes=100000-"]


def test_a_wrong_size_is_refused_and_not_kept(hub, cache: Path) -> None:
    hub.claimed_extra = 7
    with pytest.raises(HubError, match=r"^hf:owner/repo: Consistency check failed: file should be of size 300007"):
        resolve("hf:owner/repo:q4_k_m")
    hub.claimed_extra = 0
    assert resolve("hf:owner/repo:q4_k_m").read_bytes() == BIG


def test_a_wrong_hash_is_refused_and_not_kept(hub) -> None:
    hub.corrupt = True
    with pytest.raises(HubError, match=r"^m-Q4_K_M\.gguf: SHA-256 of what arrived is .*, expected .*; it was removed"):
        resolve("hf:owner/repo:q4_k_m")
    hub.corrupt = False
    assert resolve("hf:owner/repo:q4_k_m").read_bytes() == BIG


@pytest.mark.parametrize("how", ["offline", "unreachable"])
def test_without_the_hub_the_cache_serves(hub, cache: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    path = resolve("hf:owner/repo:q4_k_m")
    hub.requests.clear()
    if how == "offline":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    else:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    assert resolve("hf:owner/repo:Q4_K_M") == path
    assert resolve("hf:owner/repo") == path
    assert resolve(f"hf:owner/repo@{hub.commit}") == path
    with pytest.raises(HubError, match=r"and hf:owner/absent is not in the cache"):
        resolve("hf:owner/absent:q4_k_m")
    assert hub.requests == []


def test_without_the_library_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'minillama\[hub\]'"):
        resolve("hf:owner/repo:q4_k_m")


def test_its_progress_bars_come_back(hub, capsys: pytest.CaptureFixture[str]) -> None:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, enable_progress_bars

    enable_progress_bars()
    resolve("hf:owner/repo:q4_k_s")
    assert not are_progress_bars_disabled()
    assert capsys.readouterr() == ("", "")
