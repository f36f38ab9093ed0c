"""How the Master plans a generation: fence, repair, choice of the checkpoint. As gang_launcher."""

import json
from functools import cache
from typing import Any

from megatron_contract.exit_codes import ExitCode
from megatron_trainer.health.retry_policy import RestartPlan, plan_restart
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport

from tests.protocol import gang_model as g
from tests.protocol.gang_launcher import FIRST_WITH_LEASE, IN_PREPARE, NO, States, awake, completed, role
from tests.protocol.gang_model import Config, State


def await_fence(config: Config, state: State, name: str) -> States:
    """CheckpointLease.await_fence, once the volume is writable.

    Assumed: a former holder that is not frozen and that checks the lease has stopped its ranks when the fence
    ends. One that is frozen, or that prepares a generation, has not.
    """
    process = awake(state, name)
    if process is None or process.phase != g.PREPARE or not state.writable:
        return NO
    if state.holder != role(name):
        return (g.end(state, name, g.ENDED if name == "master" else g.NONE),)
    other = state.former_master if name == "master" else state.master
    checks = FIRST_WITH_LEASE <= other.phase < g.ENDED and other.phase not in IN_PREPARE
    if config.fence and process.note and checks and not other.frozen:
        return NO
    process = process._replace(phase=g.REPAIR, note=0)
    return (g.put(state, name, process)._replace(begun=role(name)),)


def _lost(config: Config, state: State, name: str) -> States | None:
    """What follows if the lease is lost: checked right before the directory is changed."""
    if not config.check_in_prepare or state.holder == role(name):
        violated = g.changes_directory(state, name)
        return None if violated is None else (violated,)
    return (g.end(state, name, g.ENDED if name == "master" else g.NONE),)


def repair(config: Config, state: State, name: str) -> States:
    """selection.choose: set incomplete checkpoints aside, correct the tracker."""
    process = awake(state, name)
    if process is None or process.phase != g.REPAIR or not state.writable:
        return NO
    if (lost := _lost(config, state, name)) is not None:
        return lost
    state = g.put(state, name, process._replace(phase=g.PLAN))
    if not config.set_aside:
        return (state,)
    complete = g.complete_iterations(state.directories)
    newest = complete[0] if complete else 0
    broken = [number for number, code in enumerate(state.directories, 1) if code and number > newest]
    directories, detached = g.set_aside(state, broken)
    return (g.with_directories(state, directories, tracker=newest, **detached),)


def plan(config: Config, state: State, name: str) -> States:
    """CheckpointManager._choose_start with the real plan_restart, then RunJournal.start_generation.

    Assumed: a former worker that is not frozen has lost its store and stopped its ranks, which takes
    OPERATION_TIMEOUT, before its replacement has joined.
    """
    process = awake(state, name)
    if process is None or process.phase != g.PLAN or not state.writable:
        return NO
    running = state.former_worker
    if name == "master" and running.ranks != g.STOPPED and not running.frozen:
        return NO
    if name == "master" and (state.worker.ranks != g.STOPPED and state.worker.connected):
        return (state._replace(violation="a generation is planned while ranks of a pod run"),)
    if (lost := _lost(config, state, name)) is not None:
        return lost
    complete = g.complete_iterations(state.directories)
    memory, decided = _planned(state.memory, state.report if name == "master" else 0, tuple(complete), config)
    if decided.verdict is not None:
        if decided.verdict.code == ExitCode.OK:
            return (state._replace(result=1, memory=memory),)
        return (state._replace(result=2, memory=memory),)
    begin = decided.start or 0
    if begin != (complete[0] if complete else 0) and not decided.discard:
        return (state._replace(violation="an older checkpoint is chosen"),)
    if begin < state.newest and not decided.discard:
        return (state._replace(violation="a complete checkpoint is ignored"),)
    discarded = [number for number in decided.discard if number > begin]
    directories, detached = g.set_aside(state, discarded)
    if discarded:
        state = state._replace(newest=begin, tracker=begin)
    if begin == config.iterations:
        return completed(state, name)
    state = g.with_directories(g.put(state, name, process), directories, memory=memory, **detached)
    if state.violation:
        return (state,)
    if name == "master":
        return (_announced(state, begin),)
    process = process._replace(phase=g.RUN, ranks=g.LOADING, iteration=begin, owner=g.FORMER)
    return (state._replace(former_master=process),)


def _announced(state: State, begin: int) -> State:
    """The plan in the store, unless another generation has started meanwhile; the journal has it anyway."""
    master = state.master._replace(phase=g.JOINED)
    former = state.former_worker
    if former.phase != g.NONE:
        former = former._replace(note=1)
    state = state._replace(master=master, journal=master.generation, former_worker=former)
    if state.store == master.generation and state.plan < 0:
        state = state._replace(plan=begin)
    return state


_MEMORIES: list[str] = ["{}"]


@cache
def _planned(memory: int, report: int, complete: tuple[int, ...], config: Config) -> tuple[int, RestartPlan]:
    """The product's plan_restart. Memories are numbered in the order in which they are found."""
    value: dict[str, Any] = json.loads(_MEMORIES[memory])
    failure = None
    if report >= g.LOSS_REPORT:
        failure = FailureReport(
            FailureKind.LOSS, "loss", failed_iteration=report - g.LOSS_REPORT, detected_at=0.0
        )
    elif report >= g.UNREADABLE_REPORT:
        failure = FailureReport(
            FailureKind.RANK, "load", unreadable=report - g.UNREADABLE_REPORT, detected_at=0.0
        )
    decided = plan_restart(value, failure, complete, config.iterations, "fail")
    text = json.dumps(value, sort_keys=True)
    if text not in _MEMORIES:
        _MEMORIES.append(text)
    return _MEMORIES.index(text), decided
