"""The examples run as printed, and say what the guide says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

HOME = Path(__file__).parents[2]
GUIDE = (HOME / "docs" / "guides" / "look-inside.md").read_text()
ALL_GUIDES = GUIDE + (HOME / "docs" / "embeddings.md").read_text()
EXAMPLES = sorted(path.stem for path in (HOME / "examples").glob("*.py"))
WITHOUT_PICTURE = {"corrupted_tensor", "sentence_embeddings"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(HOME / "examples" / f"{name}.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines() if str(HOME) not in line]
    printed = [line.strip() for line in ALL_GUIDES.split(f"examples/{name}.py\n", 1)[1].split("```", 1)[0].splitlines()]
    assert [line for line in printed if line and line != "..."], name
    missing = [line for line in printed if line not in lines and line not in ("", "...")]
    assert not missing, f"{name}: the guide shows what was not printed: {missing}"
    pictures = list(tmp_path.glob("*.png"))
    assert (name in WITHOUT_PICTURE) == (not pictures)
    assert all(picture.stat().st_size > 5000 for picture in pictures)


def test_the_interface_runs_as_printed(tmp_path: Path) -> None:
    code = GUIDE.split("```python\n", 1)[1].split("```", 1)[0]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("(1, 576) (1, 9, 5) (5, 49152)\n")
    assert (tmp_path / "run.npz").exists()
