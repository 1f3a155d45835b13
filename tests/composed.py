"""Configurations as the command line composes them."""

from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from conf.schema import EyrieConfig
from workflows import config


def composed(*overrides: str) -> DictConfig:
    config.register()
    with initialize_config_module(version_base="1.3", config_module="conf"):
        return compose("config", overrides=list(overrides))


def typed(*overrides: str) -> EyrieConfig:
    return config.load(composed(*overrides))
