"""The error of a user's mistake (pure)."""

from collections.abc import Iterator
from contextlib import contextmanager


class ConfigError(ValueError):
    """Names the configuration key and ends in what to do; `cli.launch` prints it without a traceback and exits 2."""


@contextmanager
def users_mistake() -> Iterator[None]:
    """A ValueError from reading what the user gave is a message for the user, without a traceback."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from error
