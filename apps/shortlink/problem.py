"""What the `shortlink` commands share: names in the data folder, and how a command gives up."""

DATABASE = "links.db"
LOCK = "demo.lock"
"""Held by a running demo; says in JSON which process it is and where its ops listener is."""


class Problem(Exception):
    """Ends the command with one line that says what is wrong and how to mend it."""
