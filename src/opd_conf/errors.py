"""Mistakes of a user: shown as one message, never as a traceback."""


class UserError(Exception):
    """Says what is wrong, with the numbers, and what to type instead. The command ends with exit code 2."""
