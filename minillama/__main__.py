"""``python -m minillama`` is the command line."""

from minillama.cli import main

main()
