"""Acceptance from counters."""

import pytest

from actors.acceptance import Acceptance, difference
from actors.engine import SpecCounters


def test_length_and_positions_of_a_span_between_two_readings() -> None:
    before = SpecCounters(drafts=10, draft_tokens=30, accepted=30, accepted_per_position=(10, 10, 10))
    after = SpecCounters(drafts=30, draft_tokens=90, accepted=55, accepted_per_position=(25, 18, 12))
    found = Acceptance.of(difference(before, after))
    assert found.drafts == 20
    assert found.acceptance_length == 1 + 25 / 20
    assert found.per_position == [15 / 20, 8 / 20, 2 / 20]


def test_an_engine_that_had_counted_nothing_has_no_positions_yet() -> None:
    after = SpecCounters(drafts=4, draft_tokens=8, accepted=3, accepted_per_position=(2, 1))
    assert difference(SpecCounters(), after) == after


def test_no_drafts_is_an_error_and_not_an_acceptance_length_of_one() -> None:
    still = SpecCounters(drafts=7, draft_tokens=21, accepted=5, accepted_per_position=(3, 2, 0))
    with pytest.raises(ValueError, match="the engine drafted nothing"):
        Acceptance.of(difference(still, still))


def test_a_restarted_engine_is_noticed() -> None:
    before = SpecCounters(drafts=7, draft_tokens=21, accepted=5, accepted_per_position=(3, 2, 0))
    after = SpecCounters(drafts=9, draft_tokens=27, accepted=2, accepted_per_position=(2, 0, 0))
    with pytest.raises(ValueError, match="restarted"):
        difference(before, after)


@pytest.mark.parametrize(
    "counted",
    [
        SpecCounters(drafts=5, draft_tokens=10, accepted=4, accepted_per_position=(2, 1)),  # sum
        SpecCounters(drafts=5, draft_tokens=10, accepted=3, accepted_per_position=(1, 2)),  # later before earlier
        SpecCounters(drafts=5, draft_tokens=10, accepted=6, accepted_per_position=(6, 0)),  # more than drafts
        SpecCounters(drafts=5, draft_tokens=2, accepted=3, accepted_per_position=(2, 1)),  # more than proposed
    ],
)
def test_counters_that_contradict_each_other_are_refused(counted: SpecCounters) -> None:
    with pytest.raises(ValueError, match="contradict"):
        Acceptance.of(counted)
