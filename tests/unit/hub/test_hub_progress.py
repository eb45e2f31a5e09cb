"""What a terminal and a log file get to see."""

from __future__ import annotations

import pytest

from minillama.hub import console_progress


def run(reports: list[tuple[int, int, str]]) -> None:
    with console_progress("tiny") as progress:
        for report in reports:
            progress(*report)


REPORTS = [
    (0, 2_000_000, "waiting"),
    (0, 2_000_000, "downloading"),
    (2_000_000, 2_000_000, "downloading"),
    (1_500_000, 2_000_000, "joining"),
]


def test_a_log_file_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    run(REPORTS)
    assert capsys.readouterr() == ("", "tiny: waiting (2.0 MB)\n")


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_to_do_prints_nothing(capsys, monkeypatch, terminal: bool) -> None:
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    run([])
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_row_for_each_stage(capsys, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    run(REPORTS)
    out, err = capsys.readouterr()
    last = err.replace("\r", "\n").split("\x1b[2K")[-1].splitlines()
    assert out == ""
    assert [line.split("━")[0].strip() for line in last if "tiny" in line] == ["tiny: downloading", "tiny: joining"]
    assert "2.0/2.0 MB" in last[0]
    assert "1.5/2.0 MB" in last[1]
    assert "0:00:00" in last[0]
