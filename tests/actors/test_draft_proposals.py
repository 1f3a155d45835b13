"""How many draft tokens may differ: none in float32; in half precision ties, as many as 1 % may give by chance."""

import pytest

from actors.draft_proposals import Proposals


@pytest.mark.parametrize(
    ("compared", "unequal", "ties", "dtype", "holds"),
    [
        (48, 0, 0, "float32", True),
        (48, 1, 1, "float32", False),
        (0, 0, 0, "bfloat16", False),
        (48, 2, 2, "bfloat16", True),
        (48, 4, 4, "bfloat16", True),
        (48, 5, 5, "bfloat16", False),
        (48, 1, 0, "bfloat16", False),  # one that is no tie
        (1000, 20, 20, "bfloat16", True),
        (1000, 25, 25, "bfloat16", False),
        (1000, 500, 500, "float16", False),
    ],
)
def test_what_may_differ(compared: int, unequal: int, ties: int, dtype: str, holds: bool) -> None:
    assert Proposals(compared, compared - unequal, ties, ()).holds(dtype) is holds
