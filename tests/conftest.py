"""What all tests share: in CI a skipped test is a failure."""

from __future__ import annotations

import os

import pytest


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run of CI in which anything was skipped: a comparison that did not run proves nothing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = len(reporter.stats.get("skipped", [])) if reporter is not None else 0
    if os.environ.get("CI") and skipped and exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"CI: {skipped} tests were skipped, none may be", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
