"""How a step gets an engine."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from actors.draft_trace import DraftTrace
from actors.engine import Completion, EngineSpec, Message, Sampling, SpecCounters


class EngineHandle(Protocol):
    """A running engine, seen from a step: calls block, results come in order."""

    def render(self, conversations: list[list[Message]]) -> list[list[int]]: ...

    def generate(
        self,
        prompts: list[list[int]],
        sampling: Sampling,
        *,
        concurrency: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Completion]: ...

    def trace(self, prompts: list[list[int]], sampling: Sampling) -> list[tuple[Completion, DraftTrace | None]]:
        """One prompt after the other, with what the draft did; None where no draft is computed."""
        ...

    def counters(self) -> SpecCounters: ...

    def describe(self) -> dict[str, Any]: ...


class Engines(Protocol):
    """Where a step gets engines: actors/engine_pool.py, or a stand-in that a test injects."""

    def __call__(self, spec: EngineSpec, name: str) -> AbstractContextManager[EngineHandle]: ...

    def prepare(self, spec: EngineSpec, name: str) -> None:
        """Start one ahead in the background, if there is room."""
        ...


def checked(completions: list[Completion], prompts: list[list[int]], sampling: Sampling, what: str) -> list[Completion]:
    """The completions, or RuntimeError when one is missing, empty, too long, or of another prompt."""
    if len(completions) != len(prompts):
        raise RuntimeError(f"{what}: {len(completions)} completions of {len(prompts)} prompts")
    for index, (completion, prompt) in enumerate(zip(completions, prompts, strict=True)):
        if completion.prompt_ids != prompt:
            raise RuntimeError(f"{what}: the engine read other tokens than prompt {index} has")
        if not 0 < len(completion.output_ids) <= sampling.max_new_tokens:
            raise RuntimeError(
                f"{what}: prompt {index} was answered with {len(completion.output_ids)} tokens, "
                f"not 1 to {sampling.max_new_tokens}. See the engine's log."
            )
    return completions
