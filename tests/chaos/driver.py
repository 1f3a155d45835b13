"""The driver that the faults hit: prompts and extraction of a configuration, as workflows/eagle3.py runs them."""

import logging
import sys
from pathlib import Path

from hydra import compose, initialize_config_module

from conf.schema import EyrieConfig
from workflows import config, runner
from workflows.cluster import session
from workflows.eagle3 import build_steps
from workflows.verifier_source import resolve_verifier


def compose_config(overrides: list[str]) -> EyrieConfig:
    config.register()
    with initialize_config_module(version_base="1.3", config_module="conf"):
        return config.on_this_machine(config.load(compose("config", overrides=overrides)))


def extract(overrides: list[str]) -> Path:
    """Run up to the extraction; its folder."""
    cfg = compose_config(overrides)
    root = Path(cfg.output_root)
    verifier = resolve_verifier(cfg.verifier, root)
    with session(cfg.cluster) as ray:
        prompts, step, *_ = build_steps(cfg, verifier, ray)
        runner.run([prompts, step], root)
    return step.out(root)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    extract(sys.argv[1:])
