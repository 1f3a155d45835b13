"""Errors that end a run without being anybody's bug: their message says all there is to say (pure)."""


class Halt(RuntimeError):
    """What is committed stays, and the message says what to do. Not to be retried, and no traceback helps."""
