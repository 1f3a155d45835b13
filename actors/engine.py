"""What the pipeline asks of an inference engine, whichever it is (pure: no ray, no vllm, no torch).

Shapes: T tokens of a sequence, L captured layers, H hidden size.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from actors.draft_trace import DraftTrace

Message = dict[str, str]  # {"role": …, "content": …}
TokenLogprobs = dict[int, float]  # of tokens that may come next: the likeliest and the one that came


@dataclass(frozen=True)
class Sampling:
    """How a response is drawn. `max_new_tokens=1` with `capture` is a pure prefill."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False


@dataclass(frozen=True)
class Completion:
    """What the engine read and wrote, by its own account.

    `hidden_states` are raw bf16 bits [T, L, H] as uint16, T = prompt + response tokens - 1: the last token was never
    an input, so it has no state. None when nothing was captured.
    """

    prompt_ids: list[int]
    output_ids: list[int]
    finish_reason: str  # "stop" or "length"
    hidden_states: Any | None = None  # numpy.ndarray[uint16]
    prompt_logprobs: list[TokenLogprobs] | None = None  # [P - 1]: entry i follows prompt token i
    accepted: list[int] | None = None  # draft tokens accepted in each step; None: no draft, or none that is computed


@dataclass(frozen=True)
class SpecCounters:
    """Cumulative speculative decoding counters of an engine; take differences."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    accepted_per_position: tuple[int, ...] = ()


@dataclass(frozen=True)
class DraftSpec:
    """A draft for the engine to speculate with."""

    path: str
    num_speculative_tokens: int


@dataclass(frozen=True)
class EngineSpec:
    """Everything needed to start an engine. Small and picklable: it travels as an actor's argument.

    `capture_layers`: ids whose states `generate(capture=True)` returns, ascending; the last one is the number of
    layers. Empty: a plain engine. Exclusive with `draft`.
    """

    verifier: str  # folder
    config: Any  # conf.schema.EngineConfig
    trust_remote_code: bool = False
    capture_layers: tuple[int, ...] = ()
    draft: DraftSpec | None = None

    def __post_init__(self) -> None:
        assert not (self.capture_layers and self.draft), "one engine either captures or speculates"


class StatesMismatch(RuntimeError):
    """The states that an engine gave are not those of the tokens it was asked about; only this sample is lost."""


class EngineDead(RuntimeError):
    """The engine cannot go on; its actor must leave with os._exit(1) so that Ray restarts it."""


class Engine(Protocol):
    """An asynchronous engine: many `generate` calls run at once and are batched together."""

    async def render(self, messages: list[Message]) -> list[int]:
        """Token ids of a conversation in the verifier's chat template, ending in the generation prompt."""
        ...

    async def generate(
        self, prompt_ids: list[int], sampling: Sampling, *, capture: bool = False, prompt_logprobs: int = 0
    ) -> Completion:
        """`prompt_logprobs`: how many of the likeliest tokens after each prompt token to give log-probabilities of."""
        ...

    async def trace(self, prompt_ids: list[int], sampling: Sampling) -> tuple[Completion, DraftTrace | None]:
        """`generate` with a draft, alone in the engine, and what the draft did; None where no draft is computed."""
        ...

    async def decode(self, ids: list[int]) -> str: ...

    def counters(self) -> SpecCounters: ...

    def describe(self) -> dict[str, Any]:
        """Name and versions, for provenance."""
        ...

    def close(self) -> None: ...
