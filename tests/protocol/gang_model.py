"""The state of the gang's model: pods, ranks, store and volume as small numbers.

Two pods, or one. The pod of node 0 is the Master. `former_master` and `former_worker` are processes whose pod
object is gone while they still run on a node that is cut off. Ranks are one actor of their pod: a failure of
one ends all of them. An iteration is a checkpoint: what happens between two saves is not distinguished.
"""

from typing import NamedTuple

# Phases of a launcher.
NONE = 0  # no process
PENDING = 1  # a pod without a process
BOOT = 2  # a process that has not read the lease yet
ACQUIRE = 3  # it has read who held the lease
CONNECT = 4  # without a connection to the store
JOIN = 5  # connected, not joined
JOINED = 6  # waits for the plan of its generation
PREPARE = 7  # the Master: all have joined; waits for volume and fence
REPAIR = 8  # the Master: has checked the lease, repairs the directory
PLAN = 9  # the Master: plans the generation
RUN = 10  # its ranks were started
REPORT = 11  # its ranks are stopped; reports why
FINISHED = 12  # its ranks are done
ENDED = 13  # exited with a code that is retried: its pod will be replaced
COMPLETED = 14  # exited with code 0


# Ranks of a pod.
STOPPED = 0
LOADING = 1
TRAINING = 2
SAVING = 3  # a save has begun, the shard is next
WRITING = 4  # the shard is open and incomplete
DETACHED = 5  # as WRITING, in a directory that was set aside meanwhile
WRITTEN = 6  # the shard is complete
COMMITTING = 7  # the Master's: all shards are complete, metadata are next
TRACKING = 8  # the Master's: metadata are written, the tracker is next
DONE = 9
DEAD = 10
UNREADABLE = 11  # could not load the checkpoint
BAD_LOSS = 12
# As SAVING, COMMITTING and TRACKING; the lease has been checked, the write follows at once.
OPENING, SEALING, NAMING = 13, 14, 15
CHECKED = {SAVING: OPENING, COMMITTING: SEALING, TRACKING: NAMING}

# Who holds the lease, who owns a generation, who was the last to begin writing.
NOBODY, MASTER, FORMER, OTHER = 0, 1, 2, 3

# Reports of failures: 0 for those without a checkpoint, else the kind and the iteration.
UNREADABLE_REPORT = 10
LOSS_REPORT = 20


class Process(NamedTuple):
    """A pod's launcher and its ranks."""

    phase: int
    generation: int = 0
    ranks: int = STOPPED
    iteration: int = 0
    """The last iteration that its ranks have saved or loaded."""
    frozen: int = 0
    connected: int = 0
    """Whether it is connected to the store of the Master as it is now."""
    owner: int = NOBODY
    """The Master whose plan its ranks were started by."""
    note: int = 0
    """Master before its first plan: 1 if it must await the fence. In REPORT: the report. A former worker: 1
    once a generation was planned without it."""


ABSENT = Process(NONE)


class State(NamedTuple):
    """The gang, its store and its volume."""

    master: Process
    worker: Process
    former_master: Process = ABSENT
    former_worker: Process = ABSENT
    store: int = 0
    """The store's generation; 0 without a store."""
    plan: int = -1
    """The iteration that the store's generation starts from; -1 before it is planned."""
    joined: int = 0
    """1 if the Master has joined the store's generation, plus 2 if the worker has."""
    member: int = 0
    """Who the store knows as worker: 0 nobody, 1 the worker, 2 an earlier one."""
    report: int = 0
    holder: int = NOBODY
    begun: int = NOBODY
    """The Master that was the last to begin changing the directory."""
    directories: tuple[int, ...] = ()
    """The directory of each iteration, by `directory`; 0 if there is none."""
    tracker: int = 0
    journal: int = 0
    """The generation in the journal."""
    memory: int = 0
    """Number of the retry policy's memory in the journal."""
    writable: int = 1
    newest: int = 0
    """The newest iteration that has been complete and that no rule has given up."""
    faults: int = 0
    gang_restarts: int = 0
    """Restarts of the whole gang by the operator."""
    result: int = 0
    """0 while the run goes on, 1 succeeded, 2 ended with a verdict of the retry policy."""
    violation: str = ""


PROCESSES = ("master", "worker", "former_master", "former_worker")


class Config(NamedTuple):
    """Bounds of the exploration, and what the protocol does. False in the second part is a mutation."""

    nodes: int = 2
    iterations: int = 2
    faults: int = 2
    gang_restarts: int = 1
    kinds: frozenset[str] = frozenset()
    """Only these faults; empty: all."""
    freeze_anywhere: bool = False
    """A process may also be frozen between a check of the lease and the write that follows at once. No check
    can prevent what it then writes."""

    fence: bool = True
    check_before_save: bool = True
    check_before_files: bool = True
    """The lease is checked before each file of a save, not only before the save."""
    check_in_prepare: bool = True
    fence_after_race: bool = True
    end_if_complete: bool = True
    check_generation: bool = True
    swap: bool = True
    """The store's generation is advanced by compare-and-swap."""
    stop_before_join: bool = True
    set_aside: bool = True


def directory(first: int, second: int, metadata: int = 0, damaged: int = 0) -> int:
    """A checkpoint directory. Shards of the two pods: 0 missing, 1 incomplete, 2 complete."""
    return 1 + first + 3 * second + 9 * metadata + 18 * damaged


def parts(code: int) -> tuple[int, int, int, int]:
    """The arguments of `directory`."""
    code -= 1
    return code % 3, code // 3 % 3, code // 9 % 2, code // 18


COMPLETE = frozenset((directory(2, 2, 1, 0), directory(2, 2, 1, 1)))
DAMAGED = directory(2, 2, 1, 1)


def complete_iterations(directories: tuple[int, ...]) -> list[int]:
    """Iterations with a complete checkpoint, newest first."""
    return [number for number in range(len(directories), 0, -1) if directories[number - 1] in COMPLETE]


def initial(config: Config) -> State:
    """A run that has just been created: pods without processes, an empty volume."""
    worker = Process(PENDING) if config.nodes == 2 else ABSENT
    return State(Process(PENDING), worker, directories=(0,) * config.iterations)


def put(state: State, name: str, process: Process) -> State:
    """The state with another process in this place."""
    return state._replace(**{name: process})


def end(state: State, name: str, phase: int) -> State:
    """A process ends, and what depended on it is lost. `phase`: of its pod from then on."""
    fields: dict[str, object] = {name: Process(phase)}
    if name == "master":
        fields |= {"store": 0, "plan": -1, "joined": 0, "member": 0, "report": 0}
        fields |= _without_owner(state, MASTER, OTHER)
        worker = fields.get("worker", state.worker)
        assert isinstance(worker, Process)
        fields["worker"] = worker._replace(connected=0)
        former = state.former_master.phase != NONE
        if state.holder == MASTER:
            fields["holder"] = OTHER
        if state.begun == MASTER:
            fields["begun"] = OTHER if former else NOBODY
    elif name == "worker":
        if state.member == 1:
            fields["member"] = 2
    elif name == "former_master":
        fields |= _without_owner(state, FORMER, OTHER)
        if state.holder == FORMER:
            fields["holder"] = OTHER
        if state.begun in (FORMER, OTHER):
            fields["begun"] = NOBODY
    return state._replace(**fields)


def cut_off(state: State, name: str) -> State:
    """The node of a pod is cut off: its process goes on, its pod is force-deleted and replaced."""
    process: Process = getattr(state, name)
    if name == "worker":
        former = process._replace(connected=0, generation=0, note=0)
        return end(state, name, PENDING)._replace(former_worker=former)
    fields = _without_owner(state, MASTER, FORMER)
    holder, begun = (FORMER if each == MASTER else each for each in (state.holder, state.begun))
    gone = end(state, name, PENDING)
    former = process._replace(connected=0, generation=0)
    fields |= {"former_master": former, "holder": holder, "begun": begun}
    worker = fields.get("worker", gone.worker)
    assert isinstance(worker, Process)
    return gone._replace(**(fields | {"worker": worker._replace(connected=0)}))


def _without_owner(state: State, owner: int, now: int) -> dict[str, object]:
    """The worker processes whose ranks were started by `owner`, who is called `now` from now on."""
    workers = {name: getattr(state, name) for name in ("worker", "former_worker")}
    return {name: each._replace(owner=now) for name, each in workers.items() if each.owner == owner}


def advance(state: State, generation: int, report: int) -> State:
    """Stands for GangStore.advance."""
    if state.store > generation:
        met = state.plan >= 0
        return state if met else state._replace(report=max(state.report, report))
    report = max(report, 0 if state.plan >= 0 else state.report)
    return renumbered(state._replace(store=generation + 1, plan=-1, joined=0, report=report))


def renumbered(state: State) -> State:
    """The same state with the smallest generation in use as 1: only differences between them matter."""
    used = (state.store, state.journal, state.master.generation, state.worker.generation)
    lowest = min((each for each in used if each), default=1) - 1
    if lowest == 0:
        return state
    store, journal, master, worker = (each - lowest if each else 0 for each in used)
    return state._replace(
        store=store,
        journal=journal,
        master=state.master._replace(generation=master),
        worker=state.worker._replace(generation=worker),
    )


def changes_directory(state: State, name: str) -> State | None:
    """None if this process may change the directory, else the state that violates it."""
    if name == "former_master" and state.begun in (MASTER, OTHER):
        return state._replace(violation="a former Master writes")
    if name == "master" and state.begun in (FORMER,):
        return state._replace(violation="a Master writes after another one began")
    if name == "former_worker" and state.former_worker.note:
        return state._replace(violation="a former worker writes")
    return None


def with_directories(state: State, directories: tuple[int, ...], **fields: object) -> State:
    """The state with these directories; a checkpoint that is lost by it is a violation."""
    state = state._replace(directories=directories, **fields)
    found = complete_iterations(directories)
    newest = found[0] if found else 0
    if newest < state.newest:
        return state._replace(violation="a complete checkpoint is lost")
    return state if newest == state.newest else state._replace(newest=newest)


def set_aside(state: State, iterations: list[int]) -> tuple[tuple[int, ...], dict[str, object]]:
    """The directories without these, and the processes that now write into a directory set aside."""
    directories = tuple(
        0 if number in iterations else code for number, code in enumerate(state.directories, 1)
    )
    detached = {}
    for name in PROCESSES:
        process: Process = getattr(state, name)
        if process.ranks == WRITING and process.iteration + 1 in iterations:
            detached[name] = process._replace(ranks=DETACHED)
    return directories, detached
