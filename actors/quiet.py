"""The environment of actors (pure): the run's name, and that libraries print what went wrong and nothing else.

Ray forwards every line of an actor to the driver.
"""

import os

_LEVELS = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "LOGURU_LEVEL": "WARNING",  # speculators
    "TRANSFORMERS_VERBOSITY": "error",
    "TQDM_DISABLE": "1",
    "PYTHONWARNINGS": "ignore::FutureWarning,ignore::UserWarning",
}


RUN = "EYRIE_RUN"  # the run's name, set by the driver: a tag of its metrics


def runtime_env() -> dict[str, dict[str, str]]:
    """Ray runtime_env of an actor; what the driver's environment says goes first."""
    return {"env_vars": {name: os.environ.get(name, level) for name, level in ({RUN: ""} | _LEVELS).items()}}
