"""The verifier's final norm and lm_head on a CPU: log-probabilities from last states, in float32 (pure: numpy).

Only these two tensors of the checkpoint are read, and lm_head stays mapped: it is multiplied piece by piece. Shapes: n
states, k tokens, H hidden size, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actors.checkpoint_folder import read_config, safetensors_header, text_config
from actors.verifier_tensors import FINAL_NORM, LM_HEAD, find_tensor

PIECE_BYTES = 128 << 20  # of float32 lm_head at a time
STORED = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}


def bf16_to_float(bits: np.ndarray) -> np.ndarray:
    """Raw bf16 bits (uint16) as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Rows:
    """A tensor of a safetensors file, mapped; rows come out as float32."""

    def __init__(self, folder: Path, suffix: str):
        place = find_tensor(folder, suffix)
        entry = safetensors_header(place.file)[place.name]
        with place.file.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
        begin = 8 + header + entry["data_offsets"][0]
        self.shape = tuple(entry["shape"])
        self._data = np.memmap(place.file, STORED[entry["dtype"]], "r", begin, self.shape)

    def __getitem__(self, rows: Any) -> np.ndarray:
        found = np.asarray(self._data[rows])
        return bf16_to_float(found) if found.dtype == np.uint16 else found.astype(np.float32)


@dataclass(frozen=True)
class Predicted:
    """Of the tokens that were asked for, all [n, k]."""

    logprobs: np.ndarray
    logits: np.ndarray
    spread: np.ndarray  # 2-norm of a logit's H products: rounding its inputs by u moves it by about u times this


class VerifierHead:
    """Log-probabilities of next tokens from last states, as the draft's training targets are made from them."""

    def __init__(self, verifier: str):
        folder = Path(verifier)
        self._lm_head, self._norm = Rows(folder, LM_HEAD), Rows(folder, FINAL_NORM)[:]
        self._eps = text_config(read_config(folder))["rms_norm_eps"]

    def normed(self, states: np.ndarray) -> np.ndarray:
        """[n, H] float32 after the final RMSNorm."""
        scale = np.sqrt(np.mean(np.square(states), axis=-1, keepdims=True) + self._eps)
        return states / scale * self._norm

    def predict(self, inputs: np.ndarray, tokens: np.ndarray) -> Predicted:
        """Of `tokens` [n, k] after `inputs` [n, H]: float32 states that went through the norm."""
        products = self._lm_head[tokens] * inputs[:, None]  # [n, k, H]
        logits = products.sum(-1)
        spread = np.sqrt(np.square(products).sum(-1))
        return Predicted(logits - self._log_sum_exp(inputs)[:, None], logits, spread)

    def likeliest(self, inputs: np.ndarray, top: int) -> np.ndarray:
        """[n, top] token ids after `inputs` [n, H], the likeliest first."""
        best = [np.argpartition(-logits, top - 1)[:, :top] + begin for begin, logits in self._pieces(inputs)]
        tokens = np.concatenate(best, axis=-1)
        order = np.argsort(-self.predict(inputs, tokens).logits, axis=-1)[:, :top]
        return np.take_along_axis(tokens, order, axis=-1)

    def _log_sum_exp(self, inputs: np.ndarray) -> np.ndarray:
        """[n]: over all V logits."""
        total = np.full(len(inputs), -np.inf, np.float32)
        for _, logits in self._pieces(inputs):
            top = logits.max(-1)
            total = np.logaddexp(total, top + np.log(np.exp(logits - top[:, None]).sum(-1)))
        return total

    def _pieces(self, inputs: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """First token and logits [n, tokens] of each part of the vocabulary."""
        vocab, hidden = self._lm_head.shape
        piece = max(1, PIECE_BYTES // (4 * hidden))
        for begin in range(0, vocab, piece):
            yield begin, inputs @ self._lm_head[begin : begin + piece].T
