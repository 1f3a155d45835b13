"""A step of the DAG: a function, the configuration it reads and the steps it needs (pure)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from workflows.fingerprint import SHORT, fingerprint

StepFunction = Callable[[dict[str, Path], Path], dict[str, Any]]  # (directories of the deps by name, out) -> accounting


@dataclass(frozen=True, eq=False)
class Step:
    """`config` holds only the sections that `run` reads, so that other keys leave its output valid."""

    name: str
    config: Mapping[str, Any]  # section name -> dataclass or value
    deps: tuple["Step", ...]
    run: StepFunction
    inputs: Mapping[str, str] = field(default_factory=dict)  # further inputs by fingerprint, e.g. the verifier

    def __post_init__(self) -> None:
        names = [*self.inputs, *(dep.name for dep in self.deps)]
        assert len(names) == len(set(names)), f"{self.name}: two inputs of one name: {names}"

    @cached_property
    def all_inputs(self) -> dict[str, str]:
        """Fingerprints of everything the step reads, by name."""
        return {**self.inputs, **{dep.name: dep.fingerprint for dep in self.deps}}

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits; never over paths, hosts or worker counts."""
        return fingerprint(self.config, self.all_inputs)

    @property
    def short(self) -> str:
        return self.fingerprint[:SHORT]

    def out(self, root: Path) -> Path:
        """Directory of the step's output."""
        return root / self.name / self.short
