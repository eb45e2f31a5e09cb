"""README's snippets run as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) == 5


@pytest.mark.real
@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippet_runs(number: int) -> None:
    done = subprocess.run([sys.executable, "-c", SNIPPETS[number]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if number == 0:
        assert done.stdout.startswith(" Paris.")
    if number == 2:
        assert [line.split()[0] for line in done.stdout.splitlines()] == [
            "token_embd", "blk.0.q_rope", "blk.29.l_out", "result_output",
        ]  # fmt: skip
