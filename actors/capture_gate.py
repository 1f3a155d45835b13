"""The capture gate: whether states are those that the engine itself computes its next-token probabilities from (pure).

A sample of every shard is read again by the engine, alone, with states and prompt logprobs. Two things must hold:

1. `log_softmax(lm_head(norm(h_last)))`, from these states and the checkpoint's own norm and lm_head, is what the engine
   says. Both come from one forward pass, so they differ by rounding only, and the bound follows from the dtype.
2. The stored states, which came out of a full batch while other requests ran, are these states: at each layer the two
   are as near as rounding leaves them, measured against how far the states of different tokens are from each other.

Shapes: T tokens, L layers with the last one last, H hidden size, n states that are looked at, k tokens after each.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from actors.engine import TokenLogprobs
from actors.verifier_head import VerifierHead, bf16_to_float

TOP = 4  # log-probabilities that the engine is asked for at each position, beside the token that follows
POSITIONS = 24  # looked at in a sample, at most
MIN_TOKENS = 4
SIGMAS = 6.0  # of rounding: no entry is further off
TYPICAL = 3.0  # times the rounding that is expected: the root mean square of all entries is not further off
# Unit roundoff: the largest relative error of one rounding. Kept states are bf16 whatever the engine computes in.
ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
STORED = ROUNDOFF["bfloat16"]
NEAR = {"bfloat16": 0.25, "float16": 0.1, "float32": 2.0**-6}  # drift at a layer, median over tokens
FAR, FAR_SHARE = 0.7, 0.1  # no more than this share of a sample's tokens may be that far off


class GateFailed(RuntimeError):
    """States that must not be trained on; the message names the likely cause."""


@dataclass(frozen=True)
class Agreement:
    """Of one sample: the last state's log-probabilities against the engine's."""

    entries: int
    mean_error: float  # nats
    largest_error: float
    of_bound: float  # the largest error in units of its bound; at most 1
    typical: float  # root mean square of the errors in units of the rounding expected; at most TYPICAL

    @property
    def holds(self) -> bool:
        return self.of_bound <= 1 and self.typical <= TYPICAL


@dataclass(frozen=True)
class SampleGate:
    """What the gate saw of a sample."""

    sample: int
    agreement: Agreement
    drift: tuple[float, ...]  # [L] of the stored states from those of the second reading, median over tokens
    far: tuple[float, ...]  # [L] share of tokens further off than FAR
    from_hf: tuple[float, ...] | None = None  # [L] as drift, from a Hugging Face forward

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def agreement(
    head: VerifierHead,
    states: np.ndarray,
    said: list[TokenLogprobs],
    dtype: str,
    norm: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Agreement:
    """`states` [n, H] are the last layer's, as float32; `said[i]` is what the engine gives to tokens after state i."""
    width = min(len(s) for s in said)
    tokens = np.array([sorted(s, key=lambda t: -s[t])[:width] for s in said])
    wanted = np.array([[s[t] for t in row] for s, row in zip(said, tokens.tolist(), strict=True)], np.float32)
    found = head.predict((norm or head.normed)(states), tokens)
    error = np.abs(found.logprobs - wanted)
    # A uniform rounding error has a standard deviation of u / sqrt(3). Two of the inputs were rounded: the state when
    # it was kept, and in a half-precision engine the norm's output; there each logit was rounded as well.
    unit = ROUNDOFF[dtype]
    sigma = np.sqrt((STORED**2 + unit**2) / 3) * found.spread
    rounded = unit * np.abs(found.logits)
    one = SIGMAS * sigma + rounded
    bound = one + one.max(-1, keepdims=True) + 1e-4  # a log-probability is a logit less the log of their sum
    expected = np.sqrt(np.mean(np.square(sigma) + np.square(rounded) / 3)) + 1e-5
    return Agreement(
        entries=error.size,
        mean_error=float(error.mean()),
        largest_error=float(error.max()),
        of_bound=float(np.nan_to_num(error / bound, nan=np.inf).max()),
        typical=float(np.nan_to_num(np.sqrt(np.mean(np.square(error))) / expected, nan=np.inf)),
    )


def drift(stored: np.ndarray, again: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Median over tokens, and share of tokens beyond FAR, at each layer, of two readings [T, L, H] in float32.

    A token's distance is in units of the typical distance of a token's state from the mean over tokens: what all tokens
    share, which can be most of a state, makes no two readings look alike. Token 0, the attention sink, is left out.
    """
    medians, shares = [], []
    for layer in range(stored.shape[1]):
        a, b = stored[1:, layer], again[1:, layer]
        scale = np.median(np.linalg.norm(b - b.mean(0), axis=-1))
        distance = np.linalg.norm(a - b, axis=-1) / max(float(scale), 1e-30)
        distance = np.nan_to_num(distance, nan=np.inf)
        medians.append(float(np.median(distance)))
        shares.append(float(np.mean(distance > FAR)))
    return tuple(medians), tuple(shares)


class CaptureGate:
    """Judges samples of one engine; `layers` are the captured ids."""

    def __init__(self, verifier: str, dtype: str, layers: tuple[int, ...]):
        if dtype not in ROUNDOFF:
            raise ValueError(f"engine.dtype: the capture gate has no bound for {dtype}; use one of {list(ROUNDOFF)}")
        self._head = VerifierHead(verifier)
        self._verifier, self._dtype, self._layers = verifier, dtype, layers

    def judge(
        self,
        sample: int,
        stored: np.ndarray,
        again: np.ndarray,
        said: list[TokenLogprobs],
        others: list[np.ndarray],
        reference: np.ndarray | None = None,
    ) -> SampleGate:
        """GateFailed unless all of it holds. `stored`, `again` [T, L, H] bf16 bits; `said[i]` follows token i of T - 1.

        `others`: stored states of other samples, only to name the cause. `reference`: of another implementation.
        """
        if stored.shape != again.shape or len(said) != len(again) - 1:
            raise GateFailed(
                f"extract.gate: sample {sample} was kept with states {stored.shape}; read again it has {again.shape} "
                f"and probabilities after {len(said)} tokens. The engine lost or doubled tokens: is prefix caching on "
                "(engine.extra)? vllm#44485 has this."
            )
        flat = [layer for index, layer in enumerate(self._layers) if not _varies(stored[:, index])]
        if flat:
            raise GateFailed(
                f"extract.gate: sample {sample}: all tokens have the same state at layers {flat}. The engine did not "
                "capture them (speculators#613, vllm#46301: zeros for hybrid models): see docs/fidelity.md."
            )
        rows = np.unique(np.linspace(0, len(said) - 1, POSITIONS).astype(int))
        last, chosen = bf16_to_float(again[:, -1]), [said[i] for i in rows]
        found = agreement(self._head, last[rows], chosen, self._dtype)
        if not found.holds:
            raise GateFailed(
                f"extract.gate: sample {sample}: norm and lm_head of {self._verifier} on the states of layer "
                f"{self._layers[-1]} give other log-probabilities than the engine: {found.mean_error:.3g} nats off on "
                f"average, {found.largest_error:.3g} at most, {found.of_bound:.3g} of the bound for {self._dtype} (1), "
                f"typically {found.typical:.3g} roundings ({TYPICAL:g}). {self._cause(last, rows, said, found)}"
            )
        medians, shares = drift(bf16_to_float(stored), bf16_to_float(again))
        if off := self._off(medians, shares):
            raise GateFailed(
                f"extract.gate: sample {sample} was kept with other states than it has when it is read again alone; "
                f"distance in units of that between tokens: {off}. {_drift_cause(stored, again, others)}"
            )
        if reference is None:
            return SampleGate(sample, found, medians, shares)
        apart, apart_shares = drift(bf16_to_float(stored), bf16_to_float(reference))
        if off := self._off(apart, apart_shares):
            raise GateFailed(
                f"extract.gate.hf: sample {sample} has other states than in a Hugging Face forward of "
                f"{self._verifier}; distance in units of that between tokens: {off}. Likely causes: the engine's layer "
                "ids mean other layers (actors/layer_ids.py), it runs other weights, or one of the two is wrong."
            )
        return SampleGate(sample, found, medians, shares, apart)

    def _off(self, medians: tuple[float, ...], shares: tuple[float, ...]) -> str:
        """The layers that are further off than they may be, in words."""
        limit = NEAR[self._dtype]
        return "; ".join(
            f"layer {layer}: {median:.3g} (at most {limit:g}), {share:.0%} of the tokens beyond {FAR} ({FAR_SHARE:.0%})"
            for layer, median, share in zip(self._layers, medians, shares, strict=True)
            if median > limit or share > FAR_SHARE
        )

    def _cause(self, last: np.ndarray, rows: np.ndarray, said: list[TokenLogprobs], found: Agreement) -> str:
        """The first explanation under which the states agree, tried one by one."""
        chosen = [said[i] for i in rows]

        def better(states: np.ndarray, norm: Callable[[np.ndarray], np.ndarray] | None = None) -> bool:
            one = agreement(self._head, states, chosen, self._dtype, norm)
            return one.holds or one.mean_error < found.mean_error / 5

        if better(last[rows], lambda states: states):
            return (
                "Likely cause: these states have been through the final norm already, and training would apply it "
                "twice. The last captured id must be the number of layers, before the norm."
            )
        for name, by in (("one token late", 1), ("one token early", -1)):
            moved = np.clip(rows + by, 0, len(last) - 1)
            if better(last[moved]):
                return f"Likely cause: states lie {name}: rows and tokens of the capture do not belong together."
        return (
            f"Likely causes: layer {self._layers[-1]} is not the last one in this engine (ids differ between engines: "
            "actors/layer_ids.py; vllm#46973, vllm#50815); the engine runs other weights than lie there (revision, "
            "engine.extra); its logits are scaled or capped, or its final norm is no plain RMSNorm, which training "
            "targets would ignore. extract.gate.hf=true tells them apart where a Hugging Face forward fits."
        )


def _varies(states: np.ndarray) -> bool:
    """Whether [T, H] bits differ between tokens."""
    return bool((states != states[0]).any())


def _drift_cause(stored: np.ndarray, again: np.ndarray, others: list[np.ndarray]) -> str:
    def near(a: np.ndarray, b: np.ndarray) -> bool:
        length = min(len(a), len(b))
        return length > MIN_TOKENS and max(drift(bf16_to_float(a[:length]), bf16_to_float(b[:length]))[0]) < 0.5

    for name, a, b in (("late", stored[1:], again[:-1]), ("early", stored[:-1], again[1:])):
        if near(a, b):
            return f"Likely cause: what was kept lies one token {name} of its tokens."
    return (
        "Likely cause: the engine mixed up requests of a batch, or steps of one request (speculators#279, "
        "vllm#44485, vllm#52909). Try engine.max_num_seqs=1: when that is clean, report it to vLLM."
    )
