"""From what hydra composed to the typed `EyrieConfig`, refusing every key that the schema lacks (no ray)."""

import difflib
import os
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from actors.cpu_environment import has_bf16
from actors.verifier import Verifier
from conf.schema import EyrieConfig
from workflows.checks import problems
from workflows.errors import ConfigError

__all__ = ["ConfigError", "explain", "load", "on_this_machine", "register", "validate"]
AUTO = "auto"
IN_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # Ray sets it for the driver of a submitted job


def register() -> None:
    """Make the schema known to hydra as `schema`, the first entry of conf/config.yaml's defaults."""
    ConfigStore.instance().store(name="schema", node=EyrieConfig)


def load(cfg: DictConfig, *, in_job: bool | None = None) -> EyrieConfig:
    """The composed configuration as a dataclass, `output_root` absolute. ConfigError for what does not fit.

    `in_job`: of a submitted job; None: as this process is. Hydra's struct mode lets `+key` and `++key` through; merging
    plain values into a fresh schema does not.
    """
    try:
        if missing := sorted(OmegaConf.missing_keys(cfg)):
            raise ConfigError(
                f"no value for {', '.join(missing)}. Choose an experiment (experiment=smollm2_cpu), or give them on "
                "the command line as key=value"
            )
        plain = OmegaConf.to_container(cfg, resolve=True)
        merged = OmegaConf.merge(OmegaConf.structured(EyrieConfig), plain)
        if missing := sorted(OmegaConf.missing_keys(merged)):
            raise ConfigError(f"no value for {', '.join(missing)}. Give them on the command line as key=value")
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ConfigError(explain(error)) from error
    assert isinstance(config, EyrieConfig)
    submitted = IN_JOB in os.environ if in_job is None else in_job
    return replace(config, output_root=str(_absolute(config.output_root, submitted)))


def on_this_machine(cfg: EyrieConfig) -> EyrieConfig:
    """`auto` precisions made explicit: they change results, so the fingerprint must see what they became."""
    chosen = "bfloat16" if has_bf16() else "float32"
    engine, train = cfg.engine, cfg.train
    if engine.dtype == AUTO:
        engine = replace(engine, dtype=chosen)
    if train.precision == AUTO:
        train = replace(train, precision=chosen)
    return replace(cfg, engine=engine, train=train)


def validate(cfg: EyrieConfig, verifier: Verifier | None) -> None:
    """ConfigError with every range and cross check that fails; those on the verifier need it read."""
    found = list(problems(cfg, verifier))
    if len(found) == 1:
        raise ConfigError(found[0])
    if found:
        raise ConfigError(f"{len(found)} problems:\n" + "\n".join(f"  {problem}" for problem in found))


def explain(error: OmegaConfBaseException) -> str:
    """What is wrong with a key, in one line, and what fits."""
    key = error.full_key or str(error.key or "")
    first = str(error).splitlines()[0]
    # OmegaConf cannot assign an entry to a dictionary of dataclasses, only merge it.
    new_set = key.startswith(("prompts.sources.", "prompts.evals.")) and error.object_type is dict
    if new_set or "is not a subclass of" in first:
        return f"{key}: to add a set of prompts, write '++prompts.sources={{<name>: {{kind: file, path: <path>}}}}'"
    if not isinstance(error, (ConfigKeyError, ConfigAttributeError)):
        return f"{key}: {first}. See conf/schema.py" if key else first
    if error.object_type is dict:
        return f"{key}: a new entry of a dictionary needs a plus: +{key}=value"
    if not is_dataclass(error.object_type):
        return f"{key}: {first}"
    known = [field.name for field in fields(error.object_type)]
    close = difflib.get_close_matches(str(error.key), known, n=1)
    hint = f"Did you mean {close[0]}?" if close else f"Keys there: {', '.join(known)}"
    return f"{key}: there is no such key. {hint}"


def _absolute(output_root: str, in_job: bool) -> Path:
    if "://" in output_root:
        raise ConfigError(
            f"output_root: {output_root} is an object store; give a path on a file system that every node mounts"
        )
    root = Path(output_root).expanduser()
    if root.is_absolute():
        return root
    if in_job:
        raise ConfigError(
            f"output_root: {output_root} is relative, and a submitted job runs in a cache directory that Ray removes. "
            "Give an absolute path on a file system that every node shares"
        )
    return Path.cwd() / root
