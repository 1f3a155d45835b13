"""One conversation answered by the verifier, turn by turn, with the ids that the engine read and wrote (pure)."""

from dataclasses import dataclass, replace

import numpy as np

from actors.engine import Completion, Engine, Message, Sampling


@dataclass(frozen=True)
class Rollout:
    """T+1 tokens of a conversation; `loss_mask` marks those that the verifier wrote.

    `hidden_states` [T, L, H] when captured: the last token was never an input.
    """

    token_ids: np.ndarray  # [T+1] int32
    loss_mask: np.ndarray  # [T+1] bool
    hidden_states: np.ndarray | None
    finish_reason: str  # of the last turn
    turns: int

    @property
    def states(self) -> np.ndarray:
        """[T, L, H] of a rollout that was captured."""
        assert self.hidden_states is not None
        return self.hidden_states


async def roll_out(
    engine: Engine, messages: list[Message], sampling: Sampling, *, max_model_len: int, capture: bool
) -> Rollout | None:
    """Answer every user turn of `messages`; None when not even the first one fits `max_model_len` tokens.

    A later turn is left out when the chat template does not extend what stands already (templates that rewrite
    history), when the answer before it was cut, or when it does not fit: what was said so far is still on-policy.
    """
    history: list[Message] = []
    spans: list[tuple[int, int]] = []  # of the verifier's tokens
    last: Completion | None = None
    for message in messages:
        history.append(message)
        if message["role"] != "user":
            continue
        prompt = await engine.render(history)
        if len(prompt) + sampling.max_new_tokens + 1 > max_model_len:
            break
        if last is not None and prompt[: len(_ids(last))] != _ids(last):
            break
        last = await engine.generate(prompt, _reseeded(sampling, len(spans)), capture=capture)
        spans.append((len(last.prompt_ids), len(last.prompt_ids) + len(last.output_ids)))
        if last.finish_reason != "stop":
            break
        history.append({"role": "assistant", "content": await engine.decode(last.output_ids[:-1])})
    if last is None:
        return None
    ids = np.array(_ids(last), np.int32)
    mask = np.zeros(len(ids), bool)
    for begin, end in spans:
        mask[begin:end] = True
    return Rollout(ids, mask, last.hidden_states, last.finish_reason, len(spans))


def _ids(completion: Completion) -> list[int]:
    return [*completion.prompt_ids, *completion.output_ids]


def _reseeded(sampling: Sampling, turn: int) -> Sampling:
    return sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + turn)
