"""What all tests share: in CI a skipped test is a failure, and only tests marked llama_cpp may build llama.cpp."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.reference import build_llama_cpp


@pytest.fixture(autouse=True)
def _builds_only_where_it_is_said(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Building takes minutes and a C++ compiler: a test that needs it says so, also where it was built long ago."""
    if request.node.get_closest_marker("llama_cpp") is None:
        monkeypatch.setattr(build_llama_cpp, "build_folder", _refuse)


def _refuse(build: str) -> Path:
    pytest.fail(f"the {build} build of llama.cpp is only for tests marked llama_cpp")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run of CI in which anything was skipped: a comparison that did not run proves nothing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = len(reporter.stats.get("skipped", [])) if reporter is not None else 0
    if os.environ.get("CI") and skipped and exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"CI: {skipped} tests were skipped, none may be", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
