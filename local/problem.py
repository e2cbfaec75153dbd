"""How a command of the local platform gives up."""


class Problem(Exception):
    """Ends the command with one line that says what is wrong and how to mend it."""
