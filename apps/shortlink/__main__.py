"""`python -m shortlink` is the `shortlink` command."""

from shortlink.cli import main

main()
