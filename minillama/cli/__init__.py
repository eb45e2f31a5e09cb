"""The command line: parses arguments and prints; everything else is the library's."""

from minillama.cli.app import main

__all__ = ["main"]
