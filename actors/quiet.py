"""What libraries inside actors may print (pure): what went wrong. Ray forwards every line to the driver."""

import os

_LEVELS = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "LOGURU_LEVEL": "WARNING",  # speculators
    "TRANSFORMERS_VERBOSITY": "error",
    "TQDM_DISABLE": "1",
    "PYTHONWARNINGS": "ignore::FutureWarning,ignore::UserWarning",
}


def runtime_env() -> dict[str, dict[str, str]]:
    """Ray runtime_env of an actor; what the driver's environment says goes first."""
    return {"env_vars": {name: os.environ.get(name, level) for name, level in _LEVELS.items()}}
