"""The gang's model: all transitions, invariants and the goal."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from tests.protocol import gang_cluster, gang_launcher, gang_plan, gang_ranks
from tests.protocol import gang_model as g
from tests.protocol.gang_model import Config, Process, State, initial
from tests.protocol.search import Exploration, Transition, explore

BOTH = ("master", "worker")
MASTERS = ("master", "former_master")
ALL = ("master", "worker", "former_master", "former_worker")
FORMER = ("former_master", "former_worker")


class Of(NamedTuple):
    """A transition of one process, and when its guard can hold: tried in these phases, with these ranks."""

    function: Callable[..., Iterable[State]]
    names: tuple[str, ...]
    phases: Collection[int] = range(g.BOOT, g.COMPLETED + 1)
    ranks: Collection[int] = range(g.STOPPED, g.NAMING + 1)


ALIVE = range(g.BOOT, g.ENDED)
OF_PROCESSES = (
    Of(gang_launcher.start, BOTH, (g.PENDING,)),
    Of(gang_launcher.read_lease, MASTERS, (g.BOOT,)),
    Of(gang_launcher.acquire, MASTERS, (g.ACQUIRE,)),
    Of(gang_launcher.notice_lost_lease, MASTERS, range(g.CONNECT, g.ENDED)),
    Of(gang_launcher.serve_store, MASTERS, (g.CONNECT,)),
    Of(gang_launcher.join, BOTH, (g.JOIN,)),
    Of(gang_launcher.join_again, BOTH, (g.JOINED,)),
    Of(gang_plan.await_fence, MASTERS, (g.PREPARE,)),
    Of(gang_plan.repair, MASTERS, (g.REPAIR,)),
    Of(gang_plan.plan, MASTERS, (g.PLAN,)),
    Of(gang_launcher.start_ranks, BOTH, (g.JOINED,)),
    Of(gang_launcher.follow_generation, BOTH, (g.RUN, g.FINISHED)),
    Of(gang_launcher.notice_dead_ranks, ALL, (g.RUN,), (g.DEAD, g.UNREADABLE, g.BAD_LOSS)),
    Of(gang_launcher.report_failure, BOTH, (g.REPORT,)),
    Of(gang_launcher.finish, (*MASTERS, "worker"), (g.RUN,), (g.DONE,)),
    Of(gang_launcher.complete, BOTH, (g.FINISHED,)),
    Of(gang_launcher.give_up, ("master",), (g.CONNECT, g.JOIN, g.JOINED)),
    Of(gang_ranks.begin_save, ALL, ALIVE, (g.TRAINING,)),
    Of(gang_ranks.check_before_file, ALL, ALIVE, g.CHECKED),
    Of(gang_ranks.open_shard, ALL, ALIVE, (g.OPENING,)),
    Of(gang_ranks.close_shard, ALL, ALIVE, (g.WRITING, g.DETACHED)),
    Of(gang_ranks.write_metadata, MASTERS, ALIVE, (g.SEALING,)),
    Of(gang_ranks.write_tracker, MASTERS, ALIVE, (g.NAMING,)),
    Of(gang_ranks.lose_peer, ALL, (g.RUN,), gang_ranks.IN_COLLECTIVES),
    Of(gang_ranks.load_alone, ("former_master",), (g.RUN,), (g.LOADING,)),
    Of(gang_ranks.pass_barrier_alone, ("former_master",), (g.RUN,), (g.WRITTEN,)),
    Of(gang_launcher.lose_store_for_good, ("former_worker",), (g.RUN, g.FINISHED)),
    Of(gang_launcher.connect, ("worker",), (g.CONNECT,)),
    Of(gang_launcher.lose_store, ("worker",), range(g.JOIN, g.ENDED)),
    Of(gang_ranks.follow_save, ("worker",), ALIVE, (g.WRITTEN,)),
    Of(gang_launcher.begin_plan, ("master",), (g.JOINED,)),
    Of(gang_launcher.miss_heartbeat, ("master",), (g.RUN,)),
    Of(gang_ranks.load, ("master",), (g.RUN,), (g.LOADING,)),
    Of(gang_ranks.pass_barrier, ("master",), (g.RUN,), (g.WRITTEN,)),
    Of(gang_cluster.restart_gang, ("master",), ALIVE),
    Of(gang_cluster.replace_pod, BOTH, (g.ENDED,)),
    Of(gang_cluster.continue_process, ALL, ALIVE),
    Of(gang_cluster.lose_node, BOTH, ALIVE),
    Of(gang_cluster.return_node, FORMER),
    Of(gang_cluster.restore_volume, ("master",), range(g.NONE, g.COMPLETED + 1)),
)
FAULTS = (
    Of(gang_cluster.kill_rank, BOTH, (g.RUN,)),
    Of(gang_cluster.kill_pod, BOTH, ALIVE),
    Of(gang_cluster.cut_node_off, BOTH, ALIVE),
    Of(gang_cluster.freeze, ALL, ALIVE),
    Of(gang_cluster.fail_volume, ("master",), range(g.NONE, g.COMPLETED + 1)),
    Of(gang_cluster.damage, ("master",), range(g.NONE, g.COMPLETED + 1)),
    Of(gang_cluster.spoil_loss, ("master",), (g.RUN,), (g.TRAINING,)),
    Of(gang_cluster.drop_connection, ("worker",), ALIVE),
)


class Gang:
    """The transitions of the model with these bounds, and which of them are worth trying in a state."""

    def __init__(self, config: Config) -> None:
        self.transitions: list[Transition] = []
        self._of: list[tuple[Of, str]] = []
        for of, fault in [*((of, False) for of in OF_PROCESSES), *((of, True) for of in FAULTS)]:
            for name in of.names:
                apply = partial(of.function, config, name=name)
                self.transitions.append(Transition(f"{of.function.__name__}({name})", apply, fault))
                self._of.append((of, name))
        self._known: dict[tuple[int, ...], Sequence[int]] = {}

    def select(self, state: State) -> Sequence[int]:
        """The transitions whose process is in a phase, and has ranks, for which they are made."""
        master, worker, former_master, former_worker, *_ = state
        key = (*master[:3:2], *worker[:3:2], *former_master[:3:2], *former_worker[:3:2])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = [
                number for number, (of, name) in enumerate(self._of) if _may_apply(of, getattr(state, name))
            ]
        return found


def _may_apply(of: Of, process: Process) -> bool:
    return process.phase in of.phases and process.ranks in of.ranks


def violation(state: State) -> str | None:
    """The invariant that this state violates."""
    return state.violation or None


def goal(state: State) -> bool:
    """The run has succeeded, or ended with a verdict of the retry policy."""
    return state.result != 0


def explore_gang(config: Config, **options: Any) -> Exploration:
    """Explore the gang within these bounds."""
    gang = Gang(config)
    return explore(initial(config), gang.transitions, violation, goal, select=gang.select, **options)
