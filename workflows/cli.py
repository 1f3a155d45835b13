"""The command line: hydra composes, `load` types, a user's mistake ends in one message and exit code 2.

What stops a run without being anybody's bug, a full disk say, ends in one message too, and in exit code 1.
"""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from actors.halt import Halt
from conf.schema import EyrieConfig
from workflows.config import explain, load, register
from workflows.errors import ConfigError


def launch(task: Callable[[EyrieConfig], None]) -> None:
    """Call `task` with the configuration of this command line."""
    register()
    # Hydra would end the process by itself, with 1 for every error and a traceback without its causes.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    composed = False

    @hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")
    def entry(cfg: DictConfig) -> None:
        nonlocal composed
        composed = True
        task(load(cfg))

    try:
        entry()
    except ConfigError as error:
        _refuse(str(error))
    except Halt as error:  # nobody's mistake, and no bug either
        _refuse(str(error), code=1)
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ if isinstance(error, HydraException) else error
        _refuse(explain(cause) if isinstance(cause, OmegaConfBaseException) else str(error))
    except OSError as error:
        if composed:
            raise
        _refuse(f"output_root: cannot write there ({error}). Give a directory that this user may write")
    except ValueError as error:  # from hydra's parser, as for train=1
        if composed:
            raise
        _refuse(str(error))


def _refuse(message: str, code: int = 2) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(code)
