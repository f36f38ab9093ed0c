"""What ranks and their Megatron do: load, train, save. As gang_launcher, one function is one transition."""

from tests.protocol import gang_model as g
from tests.protocol.gang_launcher import NO, States, awake, role
from tests.protocol.gang_model import Config, Process, State

IN_COLLECTIVES = frozenset((g.LOADING, g.TRAINING, g.WRITTEN, g.SAVING))
WRITES_NEXT = frozenset(g.CHECKED.values())


def _owns(config: Config, state: State, name: str) -> bool:
    """require_lease and require_generation: whether these ranks may write."""
    process: Process = getattr(state, name)
    if config.check_generation and name == "former_worker" and process.note:
        return False
    owner = role(name) if name.endswith("master") else process.owner
    return state.holder == owner


def _shard(config: Config, state: State, name: str, length: int) -> tuple[int, ...]:
    """The directories with the shard of this pod in the checkpoint that its ranks are saving."""
    process: Process = getattr(state, name)
    index = process.iteration
    empty = g.directory(0, 0 if config.nodes == 2 else 2)
    first, second, metadata, damaged = g.parts(state.directories[index] or empty)
    if name.endswith("master"):
        first = length
    else:
        second = length
    return _with(state, index, g.directory(first, second, metadata, damaged))


def _with(state: State, index: int, code: int) -> tuple[int, ...]:
    return (*state.directories[:index], code, *state.directories[index + 1 :])


def _dead(state: State, name: str, process: Process) -> States:
    return (g.put(state, name, process._replace(ranks=g.DEAD)),)


def _together(config: Config, state: State, ranks: int) -> bool:
    """Whether the ranks of all pods are at this point of the same generation, so that a collective ends."""
    if state.master.ranks != ranks or state.master.frozen:
        return False
    if config.nodes == 1:
        return True
    worker, master = state.worker, state.master
    if worker.ranks != ranks or worker.frozen:
        return False
    return (worker.generation, worker.iteration) == (master.generation, master.iteration)


def load(config: Config, state: State, name: str) -> States:
    """MegatronHooks._load: Megatron loads what the tracker names; it must be what the plan names."""
    if not _together(config, state, g.LOADING):
        return NO
    start = state.master.iteration
    ranks = g.TRAINING
    if start != state.tracker:
        ranks = g.DEAD
    elif start and state.directories[start - 1] == g.DAMAGED:
        ranks = g.UNREADABLE
    elif start and state.directories[start - 1] not in g.COMPLETE:
        return (state._replace(violation="an incomplete checkpoint is loaded"),)
    worker = state.worker._replace(ranks=ranks) if config.nodes == 2 else state.worker
    return (state._replace(master=state.master._replace(ranks=ranks), worker=worker),)


def load_alone(config: Config, state: State, name: str) -> States:
    """The same of a former Master whose run has one pod."""
    process = awake(state, "former_master")
    if process is None or process.ranks != g.LOADING or config.nodes == 2:
        return NO
    ranks = g.TRAINING if process.iteration == state.tracker else g.DEAD
    return (state._replace(former_master=process._replace(ranks=ranks)),)


def begin_save(config: Config, state: State, name: str) -> States:
    """MegatronHooks._save: the lease is checked before a save."""
    process = awake(state, name)
    if process is None or process.ranks != g.TRAINING:
        return NO
    if config.check_before_save and not _owns(config, state, name):
        return _dead(state, name, process)
    return (g.put(state, name, process._replace(ranks=g.SAVING)),)


def check_before_file(config: Config, state: State, name: str) -> States:
    """MegatronHooks: the lease is checked before the shards, before metadata.json and before the tracker."""
    process = awake(state, name)
    if process is None or process.ranks not in g.CHECKED:
        return NO
    if config.check_before_files and not _owns(config, state, name):
        return _dead(state, name, process)
    return (g.put(state, name, process._replace(ranks=g.CHECKED[process.ranks])),)


def open_shard(config: Config, state: State, name: str) -> States:
    """The writer opens its file by name, which truncates it."""
    process = awake(state, name)
    if process is None or process.ranks != g.OPENING:
        return NO
    if not state.writable:
        return _dead(state, name, process)
    if (violated := g.changes_directory(state, name)) is not None:
        return (violated,)
    following = g.put(state, name, process._replace(ranks=g.WRITING))
    return (g.with_directories(following, _shard(config, state, name, 1)),)


def close_shard(config: Config, state: State, name: str) -> States:
    """The writer writes the rest through its open file.

    That is no violation for a former process: its directory was incomplete when the new Master began, which
    sets it aside, and the open file stays in it.
    """
    process = awake(state, name)
    if process is None or process.ranks not in (g.WRITING, g.DETACHED):
        return NO
    if not state.writable:
        return _dead(state, name, process)
    following = g.put(state, name, process._replace(ranks=g.WRITTEN))
    if process.ranks == g.DETACHED:
        return (following,)
    return (g.with_directories(following, _shard(config, state, name, 2)),)


def pass_barrier(config: Config, state: State, name: str) -> States:
    """All shards are complete: rank 0 knows the results of all ranks."""
    if not _together(config, state, g.WRITTEN):
        return NO
    return (state._replace(master=state.master._replace(ranks=g.COMMITTING)),)


def pass_barrier_alone(config: Config, state: State, name: str) -> States:
    """The same of a former Master whose run has one pod."""
    process = awake(state, "former_master")
    if process is None or process.ranks != g.WRITTEN or config.nodes == 2:
        return NO
    return (state._replace(former_master=process._replace(ranks=g.COMMITTING)),)


def write_metadata(config: Config, state: State, name: str) -> States:
    """Megatron's save_config: metadata.json makes a checkpoint complete."""
    process = awake(state, name)
    if process is None or process.ranks != g.SEALING:
        return NO
    if not state.writable:
        return _dead(state, name, process)
    index = process.iteration
    if not state.directories[index]:
        return _dead(state, name, process)
    if (violated := g.changes_directory(state, name)) is not None:
        return (violated,)
    first, second, _, damaged = g.parts(state.directories[index])
    following = g.put(state, name, process._replace(ranks=g.TRACKING))
    return (g.with_directories(following, _with(state, index, g.directory(first, second, 1, damaged))),)


def write_tracker(config: Config, state: State, name: str) -> States:
    """Megatron's iter_finalize_fn writes the tracker."""
    process = awake(state, name)
    if process is None or process.ranks != g.NAMING:
        return NO
    if not state.writable:
        return _dead(state, name, process)
    if (violated := g.changes_directory(state, name)) is not None:
        return (violated,)
    saved = process.iteration + 1
    ranks = g.DONE if saved == config.iterations else g.TRAINING
    following = g.put(state, name, process._replace(ranks=ranks, iteration=saved))
    return (following._replace(tracker=saved),)


def follow_save(config: Config, state: State, name: str) -> States:
    """The worker's ranks pass the last barrier of a save."""
    worker, master = awake(state, "worker"), state.master
    if worker is None or worker.ranks != g.WRITTEN or worker.generation != master.generation:
        return NO
    if master.ranks == g.STOPPED or master.iteration != worker.iteration + 1:
        return NO
    ranks = g.DONE if master.iteration == config.iterations else g.TRAINING
    return (state._replace(worker=worker._replace(ranks=ranks, iteration=master.iteration)),)


def lose_peer(config: Config, state: State, name: str) -> States:
    """A collective fails because the ranks of the other pod are gone; classify_exits: PEER_LOST."""
    process = awake(state, name)
    if process is None or process.ranks not in IN_COLLECTIVES or config.nodes == 1:
        return NO
    other = state.worker if name == "master" else state.master
    if name.startswith("former"):
        return _dead(state, name, process)
    gone = other.ranks in (g.STOPPED, g.DEAD, g.UNREADABLE, g.BAD_LOSS)
    if gone and other.phase == g.JOINED and other.generation == process.generation:
        # It has the same plan and is about to start its ranks.
        return NO
    if not gone and other.generation == process.generation:
        return NO
    return _dead(state, name, process)
