"""``minillama verify``: verdicts and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Run

from minillama.verify import Level, Report

EQUAL = Level("tensors", against="ggml", passed=True, summary="12 of 12 tensors bit-equal")
DIFFERENT = Level("tokens", passed=False, summary="50 of 56 texts have the same ids")
MISSING = Level("logits", missing="llama-cpp-python is needed: pip install it")
DISTANCES = Level("logits", passed=None, summary="largest difference 0.3")


@pytest.mark.parametrize(
    ("levels", "exit_code", "verdict"),
    [
        ([EQUAL], 0, "verified: everything that was compared is equal"),
        ([EQUAL, MISSING], 0, "verified: everything that was compared is equal; not compared: logits"),
        ([EQUAL, DIFFERENT, MISSING], 1, "NOT verified: see the differences above; not compared: logits"),
        ([MISSING], 3, "nothing was verified: no level could be compared bit for bit; not compared: logits"),
        ([DISTANCES], 3, "nothing was verified: no level could be compared bit for bit"),
    ],
)
def test_the_exit_code_says_what_the_verdict_says(
    run: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch, levels: list[Level], exit_code: int, verdict: str
) -> None:
    monkeypatch.setattr("minillama.verify.compare", lambda model, **_: Report(str(model), levels))
    done = run("verify", tiny)
    assert done.exit_code == exit_code
    assert done.stdout.splitlines()[-1] == verdict
    assert ("not run" in done.stdout) == ("pip install it" in done.stdout) == (MISSING in levels)
    as_json = run("verify", tiny, "--json")
    assert as_json.exit_code == exit_code
    assert json.loads(as_json.stdout)["verdict"] == verdict
