"""Finds out whether a run could leave nodes before their maintenance: the free places on other nodes."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from megatron_operator.api.platform import Maintenance
from megatron_operator.controller.device_reader import DeviceReader
from megatron_operator.controller.node_watch import NodeWatch
from megatron_operator.lifecycle.capacity import (
    ClusterUsage,
    WaitingGang,
    claimed_by_others,
    fitting_pods,
    places,
    usable_by_gang,
)
from megatron_operator.lifecycle.incident_history import unrecovered
from megatron_operator.lifecycle.maintenance import to_leave
from megatron_operator.lifecycle.moves import Moves
from megatron_operator.lifecycle.node_health import precautions
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.observation import Room
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import RecipeKey, StatusBuilder

FRESH: Final = 30.0
"""Seconds for which enough room is taken to be there."""
RECHECK: Final = 300.0
"""Seconds between two checks for a run that has to stay: each goes through all nodes of the cluster."""


@dataclass(frozen=True, slots=True)
class _Answer:
    leaving: frozenset[str]
    room: Room
    found_at: float
    """Monotonic seconds."""
    moves: int
    """How many moves had been decided on."""


class RoomFinder:
    """The room of runs with nodes that announce maintenance. `watch` is None where nodes may not be read.

    `devices`: those that claims need besides the nodes' resources.
    """

    def __init__(self, watch: NodeWatch | None, devices: DeviceReader | None = None) -> None:
        self._watch = watch
        self._devices = devices
        self._answers: dict[RecipeKey, _Answer] = {}
        self._moves = Moves()

    def forget(self, key: RecipeKey) -> None:
        """Drop what is kept of a run."""
        self._answers.pop(key, None)
        self._moves.forget(key)
        if self._watch is not None:
            self._watch.forget(key)

    def give_up_places(self, key: RecipeKey) -> None:
        """The run no longer moves."""
        if self._moves.forget(key):
            self.forget_answers()

    def forget_answers(self) -> None:
        """Find the room of each run again."""
        self._answers.clear()

    def follow(self, rules: Maintenance) -> None:
        """Watch what these rules name."""
        if self._watch is not None:
            self._watch.follow_start_times(rules.start_times)

    def concerns(self, status: StatusBuilder, snapshot: RunSnapshot) -> bool:
        """Whether the run has nodes to leave, and free devices can be counted if it needs some."""
        if (
            self._watch is not None
            and to_leave(status.recovery, status.now)
            and (self._devices is None or self._devices.can_count(snapshot.pods))
        ):
            return True
        self._answers.pop(status.key, None)
        return False

    def arrived(self, status: StatusBuilder, snapshot: RunSnapshot) -> bool:
        """Whether a run that was moving has just all of its pods on nodes and trains."""
        settled = snapshot.all_bound_at is not None and unrecovered(status.recovery) is None
        return settled and self._moves.forget(status.key)

    def known(self, status: StatusBuilder, snapshot: RunSnapshot) -> Room | None:
        """What was found for the same nodes a short while ago; None where it is to be found again."""
        answer = self._answers.get(status.key)
        if answer is None or answer.leaving != frozenset(to_leave(status.recovery, status.now)):
            return None
        stays = any(each.not_avoided for each in status.recovery.maintenance.values())
        enough = answer.room.pods >= snapshot.size and not stays
        return answer.room if time.monotonic() - answer.found_at < (FRESH if enough else RECHECK) else None

    async def find(
        self,
        status: StatusBuilder,
        snapshot: RunSnapshot,
        cluster: ClusterUsage,
        template: Object,
        growing: Sequence[WaitingGang],
        rules: Maintenance,
    ) -> Room:
        """The room of the run now.

        Args:
            status: Of the run.
            snapshot: Of the run.
            cluster: All nodes and pods.
            template: Of the run's new pods.
            growing: Pods that other runs will have.
            rules: What announces maintenance.

        Raises ApiError where claims are to be read and cannot be.
        """
        assert self._watch is not None, "the caller asks `concerns` first"
        announcing = self._watch.announcing(rules, status.now, snapshot.longest_grace)
        moves = self._moves.decided
        own = {pod["metadata"]["uid"] for pod in snapshot.pods}
        # In a thread: ten thousand nodes take longer than the event loop may be blocked.
        fits: Mapping[str, int] = await asyncio.to_thread(fitting_pods, cluster, template, own)
        if self._devices is not None:
            fits = await self._devices.limited(status.key, snapshot.pods, fits)
        leaving = frozenset(to_leave(status.recovery, status.now))
        # A device that is tainted announces it for the runs that use it alone.
        elsewhere = {
            name: count for name, count in fits.items() if name not in announcing and name not in leaving
        }
        # Pods that stay keep the new ones in their topology domain, and so do pods that are still ending.
        elsewhere = usable_by_gang(cluster, template, elsewhere, snapshot.placed_on)
        claimed = await asyncio.to_thread(
            claimed_by_others, cluster, template, elsewhere, own, status.now, growing
        )
        pool = await asyncio.to_thread(places, cluster, template)
        free = sum(elsewhere.values()) - claimed - self._moves.of_others(status.key, status.now)
        # Nodes that are tainted for their maintenance, or avoided, belong to the pool too.
        matching = {*pool, *leaving, *status.recovery.nodes_avoided} - snapshot.nodes_gone
        takes_pods = fits.keys() | precautions(status.recovery)
        announced = {name: sign for name, sign in announcing.items() if name in takes_pods}
        room = Room(max(0, free), len(matching), announced)
        self._answers[status.key] = _Answer(leaving, room, time.monotonic(), moves)
        return room

    def claimed(self, key: RecipeKey, now: float) -> int:
        """Number of pods of other runs that are on their way to other nodes."""
        return self._moves.of_others(key, now)

    def move(self, key: RecipeKey, pods: int, now: float) -> bool:
        """Reserve places for `pods` pods; False if the room is to be found again first.

        That is once another run began to move, or FRESH seconds have passed: a cap that kept the run until
        now had it keep an older answer.
        """
        answer = self._answers.pop(key, None)
        if answer is None or answer.moves != self._moves.decided:
            return False
        if time.monotonic() - answer.found_at >= FRESH:
            return False
        self._moves.add(key, pods, now)
        return True
