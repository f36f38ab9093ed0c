"""A control plane for one measurement: nodes that KWOK simulates, volumes, and a log of every request."""

import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from localcluster import Cluster
from localcluster.controlplane import STANDARD_HEARTBEATS, Heartbeats
from urllib3.exceptions import HTTPError

from testkit.api_server import Api, Object
from testkit.chart_installation import install_chart
from testkit.fake_nodes import fake_node
from testkit.fake_volumes import fake_volume
from testkit.operator_process import OPERATOR_NAMESPACE, write_kubeconfig

OPERATOR: Final = f"system:serviceaccount:{OPERATOR_NAMESPACE}:megatron-operator-controller"
TRAINING_OPERATOR: Final = "system:serviceaccount:kubeflow:training-operator"
NAMESPACE: Final = "bench"
STORAGE_CLASS: Final = "bench"
JOB_THREADS: Final = 64
"""Jobs that the training-operator works on at a time: with fewer, some large jobs that start delay others."""
CLIENTS: Final = 16
"""Connections that create objects."""
RENEWALS: Final = 50
"""Leases that simulated nodes renew in a second, at most: those of 500 kubelets."""
READS: Final = frozenset({"get", "list"})
POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "Metadata", "users": [OPERATOR, TRAINING_OPERATOR]},
        {
            "level": "Metadata",
            "verbs": ["delete", "deletecollection"],
            "resources": [{"group": "", "resources": ["pods"]}],
        },
        {"level": "None"},
    ],
}
PLATFORM: Final[Object] = {
    "image": "registry.example/megatron-trainer:1.0",
    "accelerators": {
        "simulated": {
            "hardware": "cpu",
            "platform": "cpu",
            "nodeLabels": {"megatron.training/simulated-gpu": "true"},
            "resources": {"cpu": "8", "memory": "64Gi"},
            "shmSize": "1Gi",
        }
    },
    "checkpoint": {"size": "1Gi", "storageClassName": STORAGE_CLASS},
}


@dataclass(frozen=True, slots=True)
class Request:
    """One request that the API server has answered."""

    time: float
    """When it was answered, seconds since the epoch."""
    user: str
    verb: str
    resource: str
    """With its subresource, for example `megatronrecipes/status`."""
    name: str
    code: int

    @property
    def read(self) -> bool:
        """Whether it is a get or a list; a watch is neither read nor write."""
        return self.verb in READS

    @property
    def write(self) -> bool:
        """Whether it changes something."""
        return not self.read and self.verb != "watch"


def parse(line: str) -> Request | None:
    """The request of a line of the audit log; None for one that is not about a resource."""
    event = json.loads(line)
    about = event.get("objectRef")
    if about is None:
        return None
    resource = about.get("resource", "") + (f"/{part}" if (part := about.get("subresource")) else "")
    return Request(
        datetime.fromisoformat(event["stageTimestamp"]).timestamp(),
        event["user"]["username"],
        event["verb"],
        resource,
        about.get("name", ""),
        int(event.get("responseStatus", {}).get("code", 0)),
    )


class AuditLog:
    """The requests of the operator and the training-operator, and all deletions of pods."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self._requests: list[Request] = []

    def read(self) -> list[Request]:
        """All requests so far, in the order of their answers."""
        if self._path.exists():
            with self._path.open("rb") as log:
                log.seek(self._offset)
                found = log.read()
            self._offset += len(found)
            *lines, self._rest = (self._rest + found).split(b"\n")
            self._requests += [each for line in lines if (each := parse(line.decode())) is not None]
        return self._requests

    def between(self, since: float, until: float, user: str = OPERATOR) -> list[Request]:
        """Requests of `user` that were answered in this interval, seconds since the epoch."""
        return [each for each in self.read() if each.user == user and since <= each.time < until]

    def deletions(self, resource: str) -> Counter[str]:
        """User -> deletions of objects of this kind that were accepted, the most frequent first."""
        accepted = [each for each in self.read() if each.resource == resource and each.code < 300]
        found = Counter(each.user for each in accepted if each.verb.startswith("delete"))
        return Counter(dict(found.most_common()))

    def created(self, resource: str, user: str = OPERATOR) -> dict[str, float]:
        """Name -> when it was created, of the objects that `user` created or applied."""
        return {
            each.name: each.time
            for each in self.read()
            if each.user == user
            and each.resource == resource
            and (each.verb, each.code) in (("create", 201), ("patch", 201))
        }


def counts(requests: Iterable[Request]) -> Counter[str]:
    """`verb resource` -> number of requests, without watches."""
    return Counter(f"{each.verb} {each.resource}" for each in requests if each.verb != "watch")


class Bench:
    """One control plane, and what is measured on it."""

    def __init__(self, cluster: Cluster, api: Api, log: AuditLog, folder: Path) -> None:
        self.cluster = cluster
        self.api = api
        self.log = log
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"

    @property
    def server_pid(self) -> int:
        """The API server's process id. Raises RuntimeError when it does not run."""
        record = self.cluster.processes.record("kube-apiserver")
        if record is None:
            raise RuntimeError("the API server does not run")
        return record.pid

    def install(self, platform: Object = PLATFORM) -> None:
        """Install the chart, and write a kubeconfig with the operator's rights."""
        token = install_chart(self.cluster, self.api, OPERATOR_NAMESPACE, {"platform": platform}, self.folder)
        write_kubeconfig(self.kubeconfig, self.api.server, token, self.api.ca_file)

    def create_all(self, objects: Iterable[Object]) -> dict[str, float]:
        """Create objects by CLIENTS connections; name -> when its request was sent."""

        def create(body: Object) -> tuple[str, float]:
            sent = time.time()
            self.api.create(body)
            return body["metadata"]["name"], sent

        with ThreadPoolExecutor(CLIENTS) as pool:
            return dict(pool.map(create, objects))


def heartbeats(nodes: int) -> Heartbeats:
    """Those of kubelets, or as much rarer as keeps all nodes within RENEWALS.

    KWOK and the API server share the bench's cores: leases of thousands of nodes would leave none to measure.
    """
    interval = max(STANDARD_HEARTBEATS.lease // 4, math.ceil(nodes / RENEWALS))
    margin = STANDARD_HEARTBEATS.grace - STANDARD_HEARTBEATS.lease
    return Heartbeats(lease=4 * interval, grace=4 * interval + margin)


@contextmanager
def control_plane(nodes: int, folder: Path) -> Iterator[Bench]:
    """A fresh control plane with so many nodes of 8 simulated GPUs; it is stopped in the end.

    Raises ClusterError when it does not start, or when one of this checkout is running.
    """
    cluster = Cluster("control-plane", heartbeats=heartbeats(nodes), job_threads=JOB_THREADS)
    cluster.down()
    cluster.paths.home.mkdir(parents=True, exist_ok=True)
    cluster.paths.audit_policy.write_text(json.dumps(POLICY))
    try:
        cluster.up()
        if cluster.binaries.stale(("helm",)):
            cluster.binaries.build(("helm",), cluster.console)
        bench = Bench(cluster, Api(cluster.kubeconfig), AuditLog(cluster.paths.audit_log), folder)
        bench.create_all(fake_node(f"node-{n}", rack=f"rack-{n // 8}") for n in range(nodes))
        bench.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        yield bench
    finally:
        cluster.down()


def volume(run: str) -> Object:
    """A volume for one run's checkpoints, reserved for its claim, as an administrator would make it."""
    made = fake_volume(f"bench-{run}", STORAGE_CLASS)
    made["spec"]["claimRef"] = {"namespace": NAMESPACE, "name": f"{run}-checkpoints"}
    return made


def recipe(name: str) -> Object:
    """A run of two pods with two simulated GPUs each."""
    return {
        "apiVersion": "megatron.training/v1beta1",
        "kind": "MegatronRecipe",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "recipe": "tiny-gpt",
            "accelerator": {"count": 4, "perNode": 2},
            "parallelism": {"tensorModelParallelSize": 2},
            "data": {"mockData": True},
            # Runs stand still on purpose while a restart is measured.
            "recovery": {"hangTimeout": "1h"},
        },
    }


def wait_for(what: str, probe: Callable[[], bool], seconds: float, interval: float = 0.5) -> float:
    """Seconds until `probe` is true, however long an answer takes. Raises TimeoutError after `seconds`."""
    began = time.monotonic()
    while True:
        with contextlib.suppress(HTTPError):
            if probe():
                return time.monotonic() - began
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(interval)
