"""What launchers do: lease, store, rendezvous, plan. Every function is one transition of the model.

A function takes the configuration and a state and returns the states that follow. Its docstring names the
product's function that it stands for.
"""

from tests.protocol import gang_model as g
from tests.protocol.gang_model import Config, Process, State

States = tuple[State, ...]
NO: States = ()
MASTERS = ("master", "former_master")
PODS = ("master", "worker")
FIRST_WITH_LEASE = g.CONNECT
IN_PREPARE = frozenset((g.PREPARE, g.REPAIR, g.PLAN))
WAITING = frozenset((g.CONNECT, g.JOIN, g.JOINED))


def role(name: str) -> int:
    """Who a Master process is in `holder` and `begun`."""
    return g.MASTER if name == "master" else g.FORMER


def awake(state: State, name: str) -> Process | None:
    """The process if it can act, else None."""
    process: Process = getattr(state, name)
    return None if process.frozen or process.phase == g.NONE else process


def reaches_store(state: State, process: Process) -> bool:
    """Whether the store of the Master answers this process."""
    return bool(process.connected and state.store and not state.master.frozen)


# Lease.


def start(config: Config, state: State, name: str) -> States:
    """A kubelet starts the process of a pod."""
    if getattr(state, name).phase != g.PENDING:
        return NO
    phase = g.BOOT if name == "master" else g.CONNECT
    return (g.put(state, name, Process(phase)),)


def read_lease(config: Config, state: State, name: str) -> States:
    """CheckpointLease.acquire, first half: who holds the lease."""
    process = awake(state, name)
    if process is None or process.phase != g.BOOT:
        return NO
    fence = int(state.holder != g.NOBODY)
    return (g.put(state, name, process._replace(phase=g.ACQUIRE, note=fence)),)


def acquire(config: Config, state: State, name: str) -> States:
    """CheckpointLease.acquire, second half: the lease file is created or replaced.

    A file that appeared since it was read is noticed, because it is created only if there is none.
    """
    process = awake(state, name)
    if process is None or process.phase != g.ACQUIRE or not state.writable:
        return NO
    fence = process.note or int(config.fence_after_race and state.holder != g.NOBODY)
    process = process._replace(phase=g.CONNECT, note=fence)
    return (g.put(state, name, process)._replace(holder=role(name)),)


def notice_lost_lease(config: Config, state: State, name: str) -> States:
    """CheckpointManager._watch and GangAgent._invoke_run: a launcher that lost the lease ends.

    Not while it prepares a generation: nothing reads `fenced` there.
    """
    process = awake(state, name)
    if process is None or process.phase < FIRST_WITH_LEASE or process.phase in IN_PREPARE:
        return NO
    if state.holder == role(name) or process.phase >= g.ENDED:
        return NO
    return (g.end(state, name, g.ENDED if name == "master" else g.NONE),)


# Rendezvous.


def serve_store(config: Config, state: State, name: str) -> States:
    """GangStore._open on node 0 with Pod._initial_state: a store that counts on from the journal."""
    process = awake(state, name)
    if process is None or process.phase != g.CONNECT:
        return NO
    if config.end_if_complete and _is_complete(config, state):
        # Nothing is left to do, also if the other pods have completed and never join.
        return completed(state, name)
    if name != "master":
        # Nobody can reach the store of a node that is cut off.
        return (g.put(state, name, process._replace(phase=g.PREPARE)),) if config.nodes == 1 else NO
    process = process._replace(phase=g.JOIN, connected=1)
    if state.store:
        return (state._replace(master=process),)
    store = state.journal + 1
    started = state._replace(master=process, store=store, plan=-1, joined=0, member=0, report=0)
    return (g.renumbered(started),)


def _is_complete(config: Config, state: State) -> bool:
    """CheckpointManager.completed, without a pending report that may require a rollback."""
    return config.iterations in g.complete_iterations(state.directories)


def completed(state: State, name: str) -> States:
    """A process exits with code 0; that of the Master makes the job Succeeded."""
    return (g.end(state, name, g.COMPLETED)._replace(result=1 if name == "master" else state.result),)


def connect(config: Config, state: State, name: str) -> States:
    """GangRendezvous._connect of a worker."""
    process = awake(state, "worker")
    if process is None or process.phase != g.CONNECT or not state.store or state.master.frozen:
        return NO
    own = process.generation
    if state.member == 2:
        waiting = int(state.plan < 0)
        state = g.advance(state._replace(member=1), max(state.store - waiting, own), 0)
    elif own:
        state = g.advance(state._replace(member=1), own, 0)
    else:
        state = state._replace(member=1)
    return (state._replace(worker=state.worker._replace(phase=g.JOIN, connected=1)),)


def join(config: Config, state: State, name: str) -> States:
    """GangRendezvous._join: join the store's generation. The ranks are stopped."""
    process = awake(state, name)
    if process is None or process.phase != g.JOIN or not reaches_store(state, process):
        return NO
    process = process._replace(phase=g.JOINED, generation=state.store)
    bit = 1 if name == "master" else 2
    return (g.put(state, name, process)._replace(joined=state.joined | bit),)


def join_again(config: Config, state: State, name: str) -> States:
    """GangRendezvous._join: another generation started while this pod waited."""
    process = awake(state, name)
    if process is None or process.phase != g.JOINED or not reaches_store(state, process):
        return NO
    if process.generation == state.store:
        return NO
    return (g.put(state, name, process._replace(phase=g.JOIN)),)


def begin_plan(config: Config, state: State, name: str) -> States:
    """GangRendezvous._join on node 0: all pods have joined."""
    process = awake(state, "master")
    if process is None or process.phase != g.JOINED or state.plan >= 0:
        return NO
    if process.generation != state.store or state.joined != (3 if config.nodes == 2 else 1):
        return NO
    return (state._replace(master=process._replace(phase=g.PREPARE)),)


# While ranks run.


def start_ranks(config: Config, state: State, name: str) -> States:
    """RankGroup._start_workers, by the plan of the generation that was joined."""
    process = awake(state, name)
    if process is None or process.phase != g.JOINED or not reaches_store(state, process):
        return NO
    if process.generation != state.store or state.plan < 0:
        return NO
    process = process._replace(phase=g.RUN, ranks=g.LOADING, iteration=state.plan, owner=g.MASTER)
    return (g.put(state, name, process),)


def _stopped(process: Process, phase: int) -> Process:
    return process._replace(phase=phase, ranks=g.STOPPED, iteration=0, owner=g.NOBODY, note=0)


def follow_generation(config: Config, state: State, name: str) -> States:
    """GangAgent._follow_generation: another pod started a generation; the ranks are killed."""
    process = awake(state, name)
    if process is None or process.phase not in (g.RUN, g.FINISHED) or not reaches_store(state, process):
        return NO
    if process.generation == state.store:
        return NO
    if not config.stop_before_join and name == "worker":
        process = process._replace(phase=g.JOIN)
    else:
        process = _stopped(process, g.JOIN)
    return (g.put(state, name, process),)


def notice_dead_ranks(config: Config, state: State, name: str) -> States:
    """GangAgent._check_ranks and the stop of the other ranks.

    The launcher reports the failure before they are stopped, and joins after both.
    """
    process = awake(state, name)
    if process is None or process.phase != g.RUN:
        return NO
    if process.ranks not in (g.DEAD, g.UNREADABLE, g.BAD_LOSS):
        return NO
    if name.startswith("former"):
        return (g.end(state, name, g.NONE),)
    report = 0
    if process.ranks == g.UNREADABLE:
        report = g.UNREADABLE_REPORT + process.iteration
    elif process.ranks == g.BAD_LOSS:
        report = g.LOSS_REPORT + process.iteration + 1
    return (g.put(state, name, _stopped(process, g.REPORT)._replace(note=report)),)


def report_failure(config: Config, state: State, name: str) -> States:
    """GangRendezvous.advance. A lost store is handled at the next rendezvous: the report is lost."""
    process = awake(state, name)
    if process is None or process.phase != g.REPORT:
        return NO
    note = process.note
    if name == "worker" and not reaches_store(state, process):
        return (g.put(state, name, process._replace(phase=g.CONNECT, connected=0, note=0)),)
    if not config.swap:
        # What a plain set of the key would do: read now, write later.
        if note < 100:
            return (g.put(state, name, process._replace(note=note + 100 * state.store)),)
        return _written_without_swap(state, name, process)
    following = g.put(state, name, process._replace(phase=g.JOIN, note=0))
    return (g.advance(following, process.generation, note),)


def _written_without_swap(state: State, name: str, process: Process) -> States:
    read, report = divmod(process.note, 100)
    following = g.put(state, name, process._replace(phase=g.JOIN, note=0))
    if read > process.generation:
        return (following,)
    if process.generation + 1 < state.store:
        return (state._replace(violation="the generation goes back"),)
    return (g.advance(following, process.generation, report),)


def lose_store(config: Config, state: State, name: str) -> States:
    """GangStore._lose of a worker: the store is gone or does not answer within OPERATION_TIMEOUT."""
    process = awake(state, "worker")
    if process is None or not g.CONNECT < process.phase < g.ENDED or reaches_store(state, process):
        return NO
    return (state._replace(worker=_stopped(process, g.CONNECT)._replace(connected=0)),)


def lose_store_for_good(config: Config, state: State, name: str) -> States:
    """The same of a former worker, which then waits until its node is reached again."""
    process = awake(state, "former_worker")
    if process is None or process.phase not in (g.RUN, g.FINISHED):
        return NO
    return (state._replace(former_worker=_stopped(process, g.CONNECT)),)


def miss_heartbeat(config: Config, state: State, name: str) -> States:
    """GangRendezvous._check_heartbeats: SILENCE_SECONDS without a heartbeat of a worker that is away."""
    process = awake(state, "master")
    if process is None or process.phase != g.RUN or config.nodes == 1:
        return NO
    worker = state.worker
    if process.generation != state.store or (worker.connected and not worker.frozen):
        return NO
    return (g.advance(state, process.generation, 0),)


def finish(config: Config, state: State, name: str) -> States:
    """GangAgent._finish: the ranks of this pod are done; `mark("finished")`."""
    process = awake(state, name)
    if process is None or process.phase != g.RUN or process.ranks != g.DONE:
        return NO
    if name == "former_master":
        return completed(state, name) if config.nodes == 1 else NO
    if not reaches_store(state, process):
        return NO
    return (g.put(state, name, process._replace(phase=g.FINISHED)),)


def complete(config: Config, state: State, name: str) -> States:
    """GangAgent._finish and Pod.run: all pods are marked as finished; exit code 0."""
    process = awake(state, name)
    if process is None or process.phase != g.FINISHED or process.generation != state.store:
        return NO
    if not reaches_store(state, process):
        return NO
    other = state.worker if name == "master" else state.master
    ready = other.phase == g.COMPLETED or (
        other.phase == g.FINISHED and other.generation == process.generation
    )
    if config.nodes == 2 and not ready:
        return NO
    if config.iterations not in g.complete_iterations(state.directories):
        # CheckpointManager.verify.
        return (g.end(state, name, g.ENDED),)
    return completed(state, name)


def give_up(config: Config, state: State, name: str) -> States:
    """GangRendezvous._require_time: the other pod has completed, so this one waits until its time is up."""
    process = awake(state, name)
    if process is None or process.phase not in WAITING:
        return NO
    if state.worker.phase != g.COMPLETED:
        return NO
    return (g.end(state, name, g.ENDED),)
