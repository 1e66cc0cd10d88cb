"""``python -m raysim`` is the command line."""

from raysim.cli.main import main

main()
