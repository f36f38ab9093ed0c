"""The pods of a namespace as the API server has them now: a list, and what a watch reports since."""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kubernetes import config
from megatron_contract.environment import CONTAINER_NAME
from megatron_operator.api.labels import LABEL_RECIPE
from urllib3.exceptions import HTTPError

from bench.fleet_trainer import Member
from testkit.api_server import Api, Object

PAUSE: Final = 0.5
"""Seconds until a watch that has ended begins again."""


@dataclass(frozen=True, slots=True)
class SeenPod:
    """What matters of a pod."""

    run: str
    member: Member
    size: int
    """Pods of its gang."""
    active: bool
    """Neither Succeeded nor Failed."""


class PodWatch:
    """Follows all pods of a namespace in a thread."""

    def __init__(self, api: Api, kubeconfig: Path, namespace: str) -> None:
        self._api = api
        self._path = api.path("Pod", namespace)
        self._namespace = namespace
        client = config.new_client_from_config(config_file=str(kubeconfig))  # type: ignore[no-untyped-call]
        self._pool = client.rest_client.pool_manager
        self._lock = threading.Lock()
        self._pods: dict[str, SeenPod] = {}
        self.released: set[str] = set()
        """uids of pods that were deleted while their container ran: it had the time to save."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="pod watch")

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """End with the next event."""
        self._stopping.set()

    def pods(self) -> list[SeenPod]:
        """All pods."""
        with self._lock:
            return list(self._pods.values())

    def _run(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(HTTPError, KeyError, ValueError):
                self._follow()
            self._stopping.wait(PAUSE)

    def _follow(self) -> None:
        found = self._api.request("GET", self._path)
        with self._lock:
            self._pods = {item["metadata"]["uid"]: each for item in found["items"] if (each := seen(item))}
        version = found["metadata"]["resourceVersion"]
        for event in self._events(version):
            if event["type"] == "ERROR" or self._stopping.is_set():
                return
            pod = event["object"]
            each = None if event["type"] == "DELETED" else seen(pod)
            with self._lock:
                if each is None:
                    last = self._pods.pop(pod["metadata"]["uid"], None)
                    if last is not None and last.member.running:
                        self.released.add(last.member.uid)
                else:
                    self._pods[pod["metadata"]["uid"]] = each

    def _events(self, version: str) -> Iterator[Any]:
        url = f"{self._api.server}{self._path}?watch=1&resourceVersion={version}"
        answer = self._pool.request("GET", url, preload_content=False, timeout=60, retries=False)
        try:
            rest = b""
            for chunk in answer.stream(65_536):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from map(json.loads, lines)
        finally:
            answer.release_conn()


def seen(pod: Object) -> SeenPod | None:
    """What matters of a pod; None for one of no recipe."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    run = (metadata.get("labels") or {}).get(LABEL_RECIPE)
    container = next((each for each in spec["containers"] if each["name"] == CONTAINER_NAME), None)
    if run is None or container is None:
        return None
    env = {each["name"]: each.get("value") for each in container.get("env") or []}
    name = metadata["name"]
    rank = 0 if name.endswith("-master-0") else int(name.rsplit("-", 1)[1]) + 1
    phase = status.get("phase")
    member = Member(
        name=name,
        uid=metadata["uid"],
        rank=rank,
        node=spec.get("nodeName"),
        running=phase == "Running",
        leaving="deletionTimestamp" in metadata,
    )
    return SeenPod(run, member, int(env.get("PET_NNODES") or 1), phase not in ("Succeeded", "Failed"))
