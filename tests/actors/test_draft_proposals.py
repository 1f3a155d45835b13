"""How many draft tokens may differ: none in float32; in half precision one in a hundred, and only ties."""

import pytest

from actors.draft_proposals import Proposals


@pytest.mark.parametrize(
    ("compared", "unequal", "ties", "dtype", "holds"),
    [
        (48, 0, 0, "float32", True),
        (48, 1, 1, "float32", False),
        (0, 0, 0, "bfloat16", False),
        (48, 1, 1, "bfloat16", True),
        (48, 2, 2, "bfloat16", False),
        (48, 1, 0, "bfloat16", False),  # one that is no tie
        (1000, 10, 10, "bfloat16", True),
        (1000, 11, 11, "bfloat16", False),
        (1000, 10, 9, "float16", False),
    ],
)
def test_what_may_differ(compared: int, unequal: int, ties: int, dtype: str, holds: bool) -> None:
    assert Proposals(compared, compared - unequal, ties, ()).holds(dtype) is holds
