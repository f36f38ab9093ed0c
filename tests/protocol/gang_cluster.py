"""What Kubernetes, the training-operator and our operator do to the gang, and the faults."""

from tests.protocol import gang_model as g
from tests.protocol.gang_launcher import NO, PODS, States
from tests.protocol.gang_model import Config, Process, State
from tests.protocol.gang_ranks import WRITES_NEXT

ALIVE = range(g.BOOT, g.ENDED)


def replace_pod(config: Config, state: State, name: str) -> States:
    """The training-operator replaces a pod that failed with a code that is retried (ExitCode)."""
    if getattr(state, name).phase != g.ENDED:
        return NO
    return (g.put(state, name, Process(g.PENDING)),)


def restart_gang(config: Config, state: State, name: str) -> States:
    """recovery_policy.decide: RestartGang of a gang that runs without progress.

    Once the budget is spent it fails the run, which is no goal here: the gang must recover without that.
    """
    if any(getattr(state, name).phase not in ALIVE for name in PODS[: config.nodes]):
        return NO
    if state.master.ranks == state.worker.ranks == g.TRAINING:
        return NO
    if state.gang_restarts == config.gang_restarts:
        return NO
    for name in PODS[: config.nodes]:
        if getattr(state, name).frozen:
            return NO
        state = g.end(state, name, g.ENDED)
    return (state._replace(gang_restarts=state.gang_restarts + 1),)


def continue_process(config: Config, state: State, name: str) -> States:
    """A frozen process goes on."""
    process = getattr(state, name)
    return (g.put(state, name, process._replace(frozen=0)),) if process.frozen else NO


def lose_node(config: Config, state: State, name: str) -> States:
    """The node of a frozen process is unreachable: recovery_policy.ForceDelete, and a replacement."""
    if not getattr(state, name).frozen or getattr(state, f"former_{name}").phase != g.NONE:
        return NO
    return (g.cut_off(state, name),)


def return_node(config: Config, state: State, name: str) -> States:
    """A node is reached again: its kubelet ends the process whose pod is gone."""
    return NO if getattr(state, name).phase == g.NONE else (g.end(state, name, g.NONE),)


def restore_volume(config: Config, state: State, name: str) -> States:
    """The volume is writable again."""
    return NO if state.writable else (state._replace(writable=1),)


# Faults.


def _faulty(config: Config, state: State, kind: str) -> State | None:
    if state.faults == config.faults or (config.kinds and kind not in config.kinds):
        return None
    return state._replace(faults=state.faults + 1)


def kill_rank(config: Config, state: State, name: str) -> States:
    """A rank dies, also in the middle of a save."""
    process: Process = getattr(state, name)
    if process.ranks in (g.STOPPED, g.DEAD, g.UNREADABLE, g.BAD_LOSS) or process.phase != g.RUN:
        return NO
    after = _faulty(config, state, "rank")
    return NO if after is None else (g.put(after, name, process._replace(ranks=g.DEAD)),)


def kill_pod(config: Config, state: State, name: str) -> States:
    """A pod is killed."""
    if getattr(state, name).phase not in ALIVE:
        return NO
    after = _faulty(config, state, "pod")
    return NO if after is None else (g.end(after, name, g.ENDED),)


def cut_node_off(config: Config, state: State, name: str) -> States:
    """A node is cut off from the network, not from the volume; its pod is force-deleted and replaced."""
    if getattr(state, name).phase not in ALIVE or getattr(state, f"former_{name}").phase != g.NONE:
        return NO
    after = _faulty(config, state, "node")
    return NO if after is None else (g.cut_off(after, name),)


def freeze(config: Config, state: State, name: str) -> States:
    """All processes of a pod are frozen, launcher and ranks."""
    process: Process = getattr(state, name)
    if process.phase not in ALIVE or process.frozen:
        return NO
    if process.ranks in WRITES_NEXT and not config.freeze_anywhere:
        return NO
    after = _faulty(config, state, "freeze")
    return NO if after is None else (g.put(after, name, process._replace(frozen=1)),)


def fail_volume(config: Config, state: State, name: str) -> States:
    """The volume is temporarily not writable."""
    after = _faulty(config, state, "volume") if state.writable else None
    return NO if after is None else (after._replace(writable=0),)


def damage(config: Config, state: State, name: str) -> States:
    """The newest complete checkpoint can no longer be loaded, though all its files have their full length."""
    complete = g.complete_iterations(state.directories)
    if not complete or state.directories[complete[0] - 1] == g.DAMAGED:
        return NO
    after = _faulty(config, state, "damage")
    if after is None:
        return NO
    index = complete[0] - 1
    return (
        after._replace(directories=(*state.directories[:index], g.DAMAGED, *state.directories[index + 1 :])),
    )


def spoil_loss(config: Config, state: State, name: str) -> States:
    """MegatronHooks._check_loss: the loss of the next iteration is not finite."""
    if state.master.ranks != g.TRAINING or state.master.phase != g.RUN:
        return NO
    after = _faulty(config, state, "loss")
    return NO if after is None else (after._replace(master=state.master._replace(ranks=g.BAD_LOSS)),)


def drop_connection(config: Config, state: State, name: str) -> States:
    """The worker's messages to the store are lost or late by more than OPERATION_TIMEOUT."""
    if not state.worker.connected or state.worker.phase not in ALIVE:
        return NO
    after = _faulty(config, state, "connection")
    return NO if after is None else (after._replace(worker=state.worker._replace(connected=0)),)
