"""The error of a user's mistake (pure)."""


class ConfigError(ValueError):
    """Names the configuration key and ends in what to do; `cli.launch` prints it without a traceback and exits 2."""
