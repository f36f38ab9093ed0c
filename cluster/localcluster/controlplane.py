"""etcd, API server, controller manager and scheduler, as processes of the host."""

from __future__ import annotations

import json
import ssl
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from localcluster.console import Console
from localcluster.errors import ClusterError
from localcluster.paths import Paths
from localcluster.pki import Authority, Certificate
from localcluster.ports import port_is_free
from localcluster.processes import Processes, http_ok, wait_until

SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
"""In start order."""
_RULES = "DRADeviceTaintRules=true"
"""Feature gate of the beta API DeviceTaintRule."""
_PREVIEW_GATES = f"--feature-gates=GenericWorkload=true,{_RULES}"
_PREVIEW_APIS = "--runtime-config=scheduling.k8s.io/v1alpha2=true,resource.k8s.io/v1beta2=true"
_AUDIT_LOG_MB = 8192


@dataclass(frozen=True)
class Ports:
    """TCP ports on the host."""

    api: int
    etcd: int
    etcd_peer: int
    controller_manager: int
    scheduler: int
    training_operator_metrics: int
    training_operator_health: int
    training_operator_webhook: int
    kwok: int

    @classmethod
    def preferred(cls, base: int) -> Ports:
        """Consecutive ports from `base` on."""
        return cls(*(base + offset for offset in range(len(fields(cls)))))


def choose_ports(remembered: Path, address: str, bases: range) -> Ports:
    """The ports stored in `remembered`; else the first block of free ports, which is stored there.

    Raises ClusterError when every block has a port in use.
    """
    if remembered.exists():
        return Ports(**json.loads(remembered.read_text()))
    for base in bases:
        ports = Ports.preferred(base)
        if all(port_is_free(address, port) for port in asdict(ports).values()):
            remembered.parent.mkdir(parents=True, exist_ok=True)
            remembered.write_text(json.dumps(asdict(ports)))
            return ports
    raise ClusterError(f"no block of free TCP ports on {address} between {bases.start} and {bases.stop}")


@dataclass(frozen=True)
class Heartbeats:
    """How soon a node is found lost, in seconds."""

    lease: int
    """Duration of the leases of simulated nodes, which are renewed every quarter of it."""
    grace: int
    """`--node-monitor-grace-period` of the controller manager."""


FAST_HEARTBEATS = Heartbeats(lease=20, grace=20)
"""For tests, which wait for lost nodes."""
STANDARD_HEARTBEATS = Heartbeats(lease=40, grace=50)
"""Those of kubelet and controller manager without flags: a renewal every 10 s."""
JOB_THREADS = 8
"""Jobs that the training-operator works on at a time. It creates the pods and services of a job one by one,
so a run that lacks a pod waits while as many large jobs start. With 64, lists timed out on a busy machine."""


class ControlPlane:
    """The control plane of one profile.

    `address` is the API server's listen address, also for pods. With `preview_apis` it serves Kubernetes' own
    PodGroups and DeviceTaintRules, an alpha and a beta API that are off by default.
    """

    def __init__(
        self,
        paths: Paths,
        processes: Processes,
        address: str,
        ports: Ports,
        *,
        preview_apis: bool = False,
        heartbeats: Heartbeats = FAST_HEARTBEATS,
        job_threads: int = JOB_THREADS,
    ) -> None:
        self.heartbeats = heartbeats
        self.job_threads = job_threads
        self.paths = paths
        self.processes = processes
        self.address = address
        self.ports = ports
        self.preview_apis = preview_apis
        self.authority = Authority(paths.pki)

    @property
    def server(self) -> str:
        """URL of the API server."""
        return f"https://{self.address}:{self.ports.api}"

    def certificates(self) -> list[Certificate]:
        """All certificates of the control plane."""
        api_names = (
            *("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"),
            *("kubernetes.default.svc.cluster.local", "127.0.0.1", API_SERVICE_ADDRESS, self.address),
        )
        return [
            Certificate("kube-apiserver", "kube-apiserver", hosts=tuple(dict.fromkeys(api_names))),
            Certificate("etcd", "etcd", hosts=("127.0.0.1", "localhost")),
            Certificate("kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
            Certificate("admin", "local-cluster-admin", "system:masters"),
            Certificate("kube-controller-manager", "system:kube-controller-manager"),
            Certificate("kube-scheduler", "system:kube-scheduler"),
            # The names to which the RBAC rules of the training-operator and CoreDNS are bound.
            Certificate("training-operator", "system:serviceaccount:kubeflow:training-operator"),
            Certificate("coredns", "system:serviceaccount:kube-system:coredns"),
            Certificate("kube-proxy", "system:kube-proxy"),
        ]

    def prepare(self) -> None:
        """Create the certificates and kubeconfig files."""
        self.authority.create()
        for certificate in self.certificates():
            self.authority.sign(certificate)
        for name in (
            "kube-controller-manager",
            "kube-scheduler",
            "training-operator",
            "coredns",
            "kube-proxy",
        ):
            self.authority.kubeconfig(name, self.server, self.component_kubeconfig(name))
        self.authority.kubeconfig("admin", self.server, self.paths.kubeconfig)

    def component_kubeconfig(self, name: str) -> Path:
        """Path of the kubeconfig of a component."""
        return self.paths.home / "kubeconfigs" / name

    def argv(self, component: str) -> list[str | Path]:
        """The command line of one of COMPONENTS. Raises ClusterError on another name."""
        arguments = {
            "etcd": self._etcd_arguments,
            "kube-apiserver": self._api_server_arguments,
            "kube-controller-manager": self._controller_manager_arguments,
            "kube-scheduler": self._scheduler_arguments,
        }
        if component not in arguments:
            raise ClusterError(f"component {component!r} is unknown; one of: {', '.join(COMPONENTS)}")
        return [self.paths.binary(component), *arguments[component]()]

    def _etcd_arguments(self) -> list[str]:
        pki, ports = self.authority, self.ports
        client, peer = f"https://127.0.0.1:{ports.etcd}", f"http://127.0.0.1:{ports.etcd_peer}"
        return [
            f"--data-dir={self.paths.home / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            f"--cert-file={pki.crt('etcd')}",
            f"--key-file={pki.key('etcd')}",
            f"--trusted-ca-file={pki.certificate}",
            "--client-cert-auth",
            # Data survives a killed process, not a power loss, which suffices for tests.
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def _api_server_arguments(self) -> list[str]:
        pki, ports = self.authority, self.ports
        return [
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--secure-port={ports.api}",
            f"--etcd-servers=https://127.0.0.1:{ports.etcd}",
            f"--etcd-cafile={pki.certificate}",
            f"--etcd-certfile={pki.crt('kube-apiserver')}",
            f"--etcd-keyfile={pki.key('kube-apiserver')}",
            f"--client-ca-file={pki.certificate}",
            f"--tls-cert-file={pki.crt('kube-apiserver')}",
            f"--tls-private-key-file={pki.key('kube-apiserver')}",
            f"--kubelet-client-certificate={pki.crt('kubelet-client')}",
            f"--kubelet-client-key={pki.key('kubelet-client')}",
            f"--kubelet-certificate-authority={pki.certificate}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-key-file={pki.directory / 'service-account.pub'}",
            f"--service-account-signing-key-file={pki.key('service-account')}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--authorization-mode=Node,RBAC",
            # OwnerReferencesPermissionEnforcement is a default of OpenShift: roles must suffice with it.
            "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
            "--allow-privileged=true",
            # Call webhooks at their pods' addresses: the host has routes to pods, but no kube-proxy.
            "--enable-aggregator-routing=true",
            # Together with the controller manager's grace period, pods of a lost node are evicted after
            # half a minute instead of six.
            "--default-not-ready-toleration-seconds=10",
            "--default-unreachable-toleration-seconds=10",
            "--max-requests-inflight=1000",
            "--max-mutating-requests-inflight=500",
            *self._audit_arguments(),
            *([_PREVIEW_APIS, _PREVIEW_GATES] if self.preview_apis else []),
        ]

    def _audit_arguments(self) -> list[str]:
        if not self.paths.audit_policy.exists():
            return []
        # At 100 MB, its default, the API server would begin another file, and readers would miss the rest.
        size = f"--audit-log-maxsize={_AUDIT_LOG_MB}"
        path = f"--audit-log-path={self.paths.audit_log}"
        return [f"--audit-policy-file={self.paths.audit_policy}", path, size]

    def _controller_manager_arguments(self) -> list[str]:
        pki, ports = self.authority, self.ports
        return [
            f"--kubeconfig={self.component_kubeconfig('kube-controller-manager')}",
            f"--secure-port={ports.controller_manager}",
            "--bind-address=127.0.0.1",
            f"--root-ca-file={pki.certificate}",
            f"--cluster-signing-cert-file={pki.certificate}",
            f"--cluster-signing-key-file={pki.key('ca')}",
            f"--service-account-private-key-file={pki.key('service-account')}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            f"--node-monitor-grace-period={self.heartbeats.grace}s",
            "--kube-api-qps=1000",
            "--kube-api-burst=1000",
            *([_PREVIEW_GATES] if self.preview_apis else []),
        ]

    def _scheduler_arguments(self) -> list[str]:
        ports = self.ports
        kubeconfig = self.component_kubeconfig("kube-scheduler")
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 1000},
        }
        path = self.paths.home / "kube-scheduler.json"
        path.write_text(json.dumps(config))
        return [
            f"--config={path}",
            f"--secure-port={ports.scheduler}",
            "--bind-address=127.0.0.1",
            *([f"--feature-gates={_RULES}"] if self.preview_apis else []),
        ]

    def start(self, component: str) -> None:
        """Start one of COMPONENTS, unless it is running. Raises ClusterError on another name."""
        self.processes.start(component, self.argv(component))

    def up(self, console: Console) -> None:
        """Start what is not running and wait until the API server is ready. Raises ClusterError."""
        running = [name for name in COMPONENTS if self.processes.running(name)]
        if len(running) == len(COMPONENTS) and self.ready():
            return
        with console.step("control plane: " + ", ".join(COMPONENTS)):
            for component in ("etcd", "kube-apiserver"):
                self.start(component)
            # The controller manager ends where it may not read /healthz within 20 s of its start.
            self.wait_ready()
            for component in COMPONENTS:
                self.start(component)

    def wait_ready(self, seconds: float = 120.0) -> None:
        """Wait for the API server. Raises ClusterError with its last output when it does not become ready."""
        try:
            wait_until(
                self.ready, seconds, "API server ready", lambda: self.processes.running("kube-apiserver")
            )
        except ClusterError as error:
            raise ClusterError(f"{error}\n{self.processes.tail('kube-apiserver')}") from error

    def ready(self) -> bool:
        """Whether the API server's /readyz answers 200."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.load_cert_chain(self.authority.crt("admin"), self.authority.key("admin"))
        return http_ok(f"{self.server}/readyz", context)
