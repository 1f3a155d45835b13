"""The arithmetic behind the fake engine: tokens and states as functions of what came before (pure: numpy).

Three of four tokens follow from the one before and the rest from the whole prefix, so that a draft has something to
learn. Half of a state is the token's own, half its prefix's. All of it is integer hashing: the same on every machine.
"""

import numpy as np

BYTES = 256
FIRST = 3  # id of byte 0; below are the special tokens
MASK = (1 << 64) - 1


def hidden_states(ids: list[int], layers: tuple[int, ...], hidden_size: int) -> np.ndarray:
    """[T, L, H] bf16 bits as uint16: half from the token itself, half from its whole prefix, values in (-1, 1)."""
    own = np.array([mix(i) for i in ids], np.uint64)[:, None]
    prefix = np.array(prefix_hashes(ids), np.uint64)[:, None]
    states = np.empty((len(ids), len(layers), hidden_size), np.uint16)
    for index, layer in enumerate(layers):
        column = np.arange(hidden_size, dtype=np.uint64) + np.uint64(layer << 32)
        values = (_uniform(own ^ column) + _uniform(prefix ^ column)).astype(np.float32)
        states[:, index] = values.view(np.uint32) >> 16
    return states


def mix(x: int) -> int:
    """splitmix64."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def extend(prefix: int, token: int) -> int:
    return mix(prefix ^ (token * 0x2545F4914F6CDD1D & MASK))


def prefix_hashes(ids: list[int]) -> list[int]:
    """[T]: one number for each prefix."""
    hashes, state = [], 0
    for token in ids:
        state = extend(state, token)
        hashes.append(state)
    return hashes


def next_token(last: int, prefix: int, salt: int) -> int:
    drawn = mix(prefix ^ salt)
    return FIRST + (mix(last) if drawn % 4 else drawn >> 8) % BYTES


def _uniform(x: np.ndarray) -> np.ndarray:
    """[T, H] uint64 -> float in (-0.5, 0.5), splitmix64 again."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)) / float(1 << 53) - 0.5
