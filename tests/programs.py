"""The command line as a program of its own."""

from __future__ import annotations

# A shell starts background jobs, such as a CI run, with Ctrl-C ignored, and Python then leaves it ignored.
COMMAND_LINE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from minillama.cli import main; main()"
)
