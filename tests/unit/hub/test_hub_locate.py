"""What a user types, and the file it means."""

from __future__ import annotations

from pathlib import Path

import pytest

from minillama import hub
from minillama.errors import HubError, InvalidInputError
from minillama.hub import catalog


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.gguf"
    path.touch()
    return path


def test_a_path_is_taken_as_it_is(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(model.parent))
    monkeypatch.setenv("USERPROFILE", str(model.parent))
    assert hub.resolve(model) == hub.resolve(str(model)) == hub.resolve("~/model.gguf") == model
    assert hub.resolve("model.gguf") == Path("model.gguf")


def test_a_name_of_the_catalog_wins_over_a_file_in_the_folder(tiny, cache: Path, model: Path, monkeypatch) -> None:
    monkeypatch.setattr(catalog, "CATALOG", {"tiny": tiny.entry})
    (cache / "models").mkdir(parents=True)
    kept = cache / "models" / tiny.entry.file
    kept.write_bytes(tiny.content)
    Path("tiny").touch()
    assert hub.resolve("tiny") == kept
    assert hub.resolve("./tiny") == hub.resolve(Path("tiny")) == Path("tiny")


@pytest.mark.parametrize("spec", ["nope.gguf", "folder/nope", Path("nope")])
def test_a_missing_file_is_said_to_be_missing(model: Path, spec) -> None:
    with pytest.raises(HubError, match=r"^the file \S*nope\S* does not exist$"):
        hub.resolve(spec)


def test_a_folder_is_refused(model: Path) -> None:
    with pytest.raises(HubError, match="is a folder; wanted a GGUF file"):
        hub.resolve(str(model.parent))


def test_an_unknown_name_lists_what_there_is_nearest_first(model: Path) -> None:
    with pytest.raises(HubError) as caught:
        hub.resolve("gemma-270m")
    assert str(caught.value) == (
        "unknown model 'gemma-270m': the catalog has gemma3-270m, smollm2-135m, qwen2.5-coder-0.5b, "
        "qwen2.5-coder-1.5b; the path of a GGUF file and hf:owner/repo:file-or-quant work too"
    )


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="empty"):
        hub.resolve("")
