"""The settings of a pod, read from the environment once."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from megatron_contract import environment as pod
from megatron_contract.tracking import Tracking
from megatron_contract.wire import WireError, load_json

from megatron_trainer.errors import TrainerError

SHORTEST_TOKEN = 16
"""Bytes of the gang's token."""


class SettingError(TrainerError):
    """An environment variable is missing or invalid. The text names it, its value and valid values."""


@dataclass(frozen=True)
class ProfileWindow:
    """The iterations that torch's profiler records, both included, and the ranks that do."""

    first: int
    last: int
    ranks: frozenset[int]


@dataclass(frozen=True)
class Settings:
    """The pod's place in the gang and its policies. Durations are in seconds."""

    platform: str
    run_id: str
    node_rank: int
    nodes: int
    ranks_per_node: int
    master_addr: str
    master_port: int
    gang_token_file: Path | None
    """None: any pod may use the gang's store."""
    progress_port: int
    max_rank_restarts: int
    rendezvous_timeout: float
    require_checkpoint: bool
    keep_checkpoints: int
    """Number of complete checkpoints to keep; 0 keeps all."""
    keep_best: bool
    """Also keep the one with the lowest validation loss."""
    termination_grace: float
    termination_log: Path
    hang_timeout: str | float
    """auto, off, or seconds."""
    preflight: bool
    bind_cpus: bool
    loss_spike_factor: float | None
    loss_spike_window: int
    """Iterations."""
    loss_on_repeat: str
    """fail or skip."""
    profile_window: ProfileWindow | None
    tracking: Tracking

    def read_gang_token(self) -> bytes:
        """Read the token of the gang's store; empty without a file for it. Raises SettingError."""
        if self.gang_token_file is None:
            return b""
        fix = "mount the Secret of the run there, or leave the variable out"
        try:
            token = self.gang_token_file.read_bytes().strip()
        except OSError as error:
            where = f"{pod.ENV_GANG_TOKEN_FILE} {self.gang_token_file}"
            raise SettingError(f"{where}: {error.strerror}; {fix}") from error
        if len(token) < SHORTEST_TOKEN:
            where = f"{pod.ENV_GANG_TOKEN_FILE} {self.gang_token_file}"
            raise SettingError(f"{where} has {len(token)} bytes, fewer than {SHORTEST_TOKEN}; {fix}")
        return token

    @property
    def world_size(self) -> int:
        """Number of ranks of the run."""
        return self.nodes * self.ranks_per_node


def _read_integer(env: Mapping[str, str], name: str, default: int | None, minimum: int = 0) -> int:
    text = env.get(name, "")
    if not text:
        if default is None:
            raise SettingError(
                f"{name} is not set; the training-operator sets it, elsewhere set a number >= {minimum}"
            )
        return default
    try:
        value = int(text)
    except ValueError:
        raise SettingError(f"{name} is {text!r}, not a whole number; set a number >= {minimum}") from None
    if value < minimum:
        raise SettingError(f"{name} is {value}; set a number >= {minimum}")
    return value


def _read_hang_timeout(env: Mapping[str, str]) -> str | float:
    text = env.get(pod.ENV_HANG_TIMEOUT, "") or pod.DEFAULT_HANG_TIMEOUT
    if text in ("auto", "off"):
        return text
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise SettingError(f"{pod.ENV_HANG_TIMEOUT} is {text!r}; set auto, off or a number of seconds > 0")
    return value


def _read_spike_factor(env: Mapping[str, str]) -> float | None:
    text = env.get(pod.ENV_LOSS_SPIKE_FACTOR, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 < value < float("inf"):
        raise SettingError(f"{pod.ENV_LOSS_SPIKE_FACTOR} is {text!r}; set a number > 1, 3 for example")
    return value


def _read_on_repeat(env: Mapping[str, str]) -> str:
    text = env.get(pod.ENV_LOSS_ON_REPEAT, "") or pod.DEFAULT_LOSS_ON_REPEAT
    if text not in ("fail", "skip"):
        raise SettingError(f"{pod.ENV_LOSS_ON_REPEAT} is {text!r}; set fail or skip")
    return text


def read_profile_window(env: Mapping[str, str] = os.environ) -> ProfileWindow | None:
    """Read the window of torch's profiler, `100-104:0,8`; None without one. Raises SettingError."""
    text = env.get(pod.ENV_PROFILE, "")
    if not text:
        return None
    match = re.fullmatch(r"([1-9][0-9]*)-([1-9][0-9]*):([0-9]+(?:,[0-9]+)*)", text)
    if match is None or int(match[2]) < int(match[1]):
        raise SettingError(f"{pod.ENV_PROFILE} is {text!r}; set first-last:ranks, 100-104:0,8 for example")
    return ProfileWindow(int(match[1]), int(match[2]), frozenset(map(int, match[3].split(","))))


def read_tracking(env: Mapping[str, str] = os.environ) -> Tracking:
    """Read where curves are recorded. Raises SettingError."""
    text = env.get(pod.ENV_TRACKING, "")
    if not text:
        return Tracking()
    try:
        return Tracking.from_json(load_json(text))
    except WireError as error:
        raise SettingError(f'{pod.ENV_TRACKING}: {error}; set {{"tensorboard": true}} for example') from error


def read(env: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings. Raises SettingError for the first one that is missing or invalid."""
    platform = env.get(pod.ENV_PLATFORM, pod.DEFAULT_PLATFORM)
    if platform not in ("gpu", "cpu"):
        raise SettingError(f"{pod.ENV_PLATFORM} is {platform!r}; set gpu or cpu")
    engine = env.get(pod.ENV_ENGINE) or pod.DEFAULT_ENGINE
    if engine not in pod.ENGINES:
        raise SettingError(f"{pod.ENV_ENGINE} is {engine!r}; set {' or '.join(pod.ENGINES)}")
    nodes = _read_integer(env, "PET_NNODES", 1, 1)
    node_rank = _read_integer(env, "PET_NODE_RANK", 0 if nodes == 1 else None)
    if node_rank >= nodes:
        raise SettingError(f"PET_NODE_RANK is {node_rank} of PET_NNODES {nodes}; set a number below {nodes}")
    master_addr = env.get("MASTER_ADDR", "127.0.0.1" if nodes == 1 else "")
    if not master_addr:
        raise SettingError("MASTER_ADDR is not set; set the name of the Master pod")
    return Settings(
        platform=platform,
        run_id=env.get(pod.ENV_RUN_ID, pod.DEFAULT_RUN_ID),
        node_rank=node_rank,
        nodes=nodes,
        ranks_per_node=_read_integer(env, "PET_NPROC_PER_NODE", 1, 1),
        master_addr=master_addr,
        master_port=_read_integer(env, "MASTER_PORT", 23456, 1),
        gang_token_file=Path(token) if (token := env.get(pod.ENV_GANG_TOKEN_FILE, "")) else None,
        progress_port=_read_integer(env, pod.ENV_PROGRESS_PORT, pod.PROGRESS_PORT),
        max_rank_restarts=_read_integer(env, pod.ENV_MAX_RANK_RESTARTS, pod.DEFAULT_MAX_RANK_RESTARTS),
        rendezvous_timeout=_read_integer(env, pod.ENV_RENDEZVOUS_TIMEOUT, pod.DEFAULT_RENDEZVOUS_TIMEOUT, 1),
        require_checkpoint=env.get(pod.ENV_REQUIRE_CHECKPOINT) == "1",
        keep_checkpoints=_read_integer(env, pod.ENV_KEEP_CHECKPOINTS, 0),
        keep_best=env.get(pod.ENV_KEEP_BEST) == "1",
        termination_grace=_read_integer(env, pod.ENV_TERMINATION_GRACE, pod.DEFAULT_TERMINATION_GRACE),
        termination_log=Path(env.get(pod.ENV_TERMINATION_LOG, pod.DEFAULT_TERMINATION_LOG)),
        hang_timeout=_read_hang_timeout(env),
        preflight=env.get(pod.ENV_PREFLIGHT) == "1",
        bind_cpus=env.get(pod.ENV_BIND_CPUS) != "0",
        loss_spike_factor=_read_spike_factor(env),
        loss_spike_window=_read_integer(env, pod.ENV_LOSS_SPIKE_WINDOW, pod.DEFAULT_LOSS_SPIKE_WINDOW, 3),
        loss_on_repeat=_read_on_repeat(env),
        profile_window=read_profile_window(env),
        tracking=read_tracking(env),
    )
