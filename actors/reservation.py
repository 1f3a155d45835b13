"""Resources of one node, held in Ray's name for an actor that is to come: whether there is room is then no guess.

What Ray reports as free lags behind the actors that were just created, so two engines could both be promised one GPU.
"""

from typing import Any

from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.node_labels import Place
from actors.room import Resources, labelled


class Reservation:
    """Asked for when made; `granted` waits for it. Ends with `release`, and with it the actor that runs in it."""

    def __init__(self, wanted: Resources, place: Place):
        self._group = placement_group([wanted], **labelled(1, place)) if wanted else None

    def granted(self, wait_s: float) -> bool:
        return self._group is None or self._group.wait(wait_s)

    def options(self) -> dict[str, Any]:
        """For the actor that takes the place."""
        if self._group is None:
            return {}
        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=0)}

    def release(self) -> None:
        if self._group is not None:
            remove_placement_group(self._group)
