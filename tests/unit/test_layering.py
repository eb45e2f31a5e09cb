"""A module imports only downwards."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "minillama"
BELOW = {
    "errors": set(),
    "gguf": {"errors"},
    "kernels": {"errors", "gguf"},
    "tokenizer": {"errors", "gguf", "kernels"},
    "runtime": {"errors", "gguf", "kernels"},
    "quantization": {"errors", "gguf", "kernels", "runtime"},
    "model": {"errors", "gguf", "kernels", "runtime"},
    "trace": {"errors", "gguf", "kernels", "runtime", "model"},
    "sampling": {"errors"},
    "chat": {"errors"},
    "hub": {"errors"},
    "generate": {
        "errors", "gguf", "kernels", "tokenizer", "runtime", "model", "trace", "sampling", "chat", "hub",
    },
}  # fmt: skip
BELOW["verify"] = set(BELOW)
BELOW["bench"] = set(BELOW)
BELOW["cli"] = set(BELOW)
BELOW["__main__"] = {"cli"}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("minillama.")} - {"__version__"}


@pytest.mark.parametrize("package", BELOW)
def test_imports_go_downwards(package: str) -> None:
    home = ROOT / package
    files = list(home.rglob("*.py")) if home.is_dir() else [ROOT / f"{package}.py"]
    assert files
    for file in files:
        assert imported(file) <= BELOW[package] | {package}, file


def test_every_package_has_a_place() -> None:
    packages = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert packages - {"__init__"} == set(BELOW)


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ["numpy", "numba", "rich", "click", "jinja2", "huggingface_hub"]
    code = f"import minillama, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_exists() -> None:
    code = "import minillama; [getattr(minillama, name) for name in minillama.__all__]; assert dir(minillama)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    import minillama

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        minillama.nothing  # noqa: B018
