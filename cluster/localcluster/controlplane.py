"""etcd, API server, controller manager and scheduler, as processes of the host."""

from __future__ import annotations

import json
import socket
import ssl
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from localcluster.console import Report
from localcluster.errors import ClusterError
from localcluster.paths import Layout
from localcluster.pki import Authority, Certificate
from localcluster.processes import Processes, http_ok, wait_until

SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
"""In the order in which they start."""


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
        return cls(*(base + offset for offset in range(len(fields(cls)))))


def port_is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def choose_ports(remembered: Path, address: str, bases: range) -> Ports:
    """The ports of the last `up`; else the first block of free ones, remembered for the next.

    Raises ClusterError when every block from `bases` has a port in use.
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


class ControlPlane:
    """The control plane of one profile.

    `address` is where the API server listens and what it tells pods to reach it at.
    """

    def __init__(self, layout: Layout, processes: Processes, address: str, ports: Ports) -> None:
        self.layout = layout
        self.processes = processes
        self.address = address
        self.ports = ports
        self.authority = Authority(layout.pki)

    @property
    def server(self) -> str:
        return f"https://{self.address}:{self.ports.api}"

    def certificates(self) -> list[Certificate]:
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
            # The names that the operator's and CoreDNS' own RBAC bind to.
            Certificate("training-operator", "system:serviceaccount:kubeflow:training-operator"),
            Certificate("coredns", "system:serviceaccount:kube-system:coredns"),
            Certificate("kube-proxy", "system:kube-proxy"),
        ]

    def prepare(self) -> None:
        """Certificates and kubeconfig files."""
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
        self.authority.kubeconfig("admin", self.server, self.layout.kubeconfig)

    def component_kubeconfig(self, name: str) -> Path:
        return self.layout.home / "kubeconfigs" / name

    def argv(self, component: str) -> list[str | Path]:
        """The command line of one of COMPONENTS."""
        pki, ports = self.authority, self.ports
        binary = self.layout.binary(component)
        if component == "etcd":
            client, peer = f"https://127.0.0.1:{ports.etcd}", f"http://127.0.0.1:{ports.etcd_peer}"
            return [
                binary,
                f"--data-dir={self.layout.home / 'etcd'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                f"--cert-file={pki.crt('etcd')}",
                f"--key-file={pki.key('etcd')}",
                f"--trusted-ca-file={pki.certificate}",
                "--client-cert-auth",
                # Survives a killed process, not a power cut: the cluster is for tests.
                "--unsafe-no-fsync",
                "--log-level=warn",
            ]
        if component == "kube-apiserver":
            return [
                binary,
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
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                # Webhooks are called at their pods' addresses: the host has routes to pods, no kube-proxy.
                "--enable-aggregator-routing=true",
                # With the controller manager's grace period: pods of a dead node are given up after half a
                # minute, not after six.
                "--default-not-ready-toleration-seconds=10",
                "--default-unreachable-toleration-seconds=10",
                "--max-requests-inflight=1000",
                "--max-mutating-requests-inflight=500",
            ]
        if component == "kube-controller-manager":
            return [
                binary,
                f"--kubeconfig={self.component_kubeconfig(component)}",
                f"--secure-port={ports.controller_manager}",
                "--bind-address=127.0.0.1",
                f"--root-ca-file={pki.certificate}",
                f"--cluster-signing-cert-file={pki.certificate}",
                f"--cluster-signing-key-file={pki.key('ca')}",
                f"--service-account-private-key-file={pki.key('service-account')}",
                "--use-service-account-credentials=true",
                "--leader-elect=false",
                "--node-monitor-grace-period=20s",
                "--kube-api-qps=1000",
                "--kube-api-burst=1000",
            ]
        if component == "kube-scheduler":
            kubeconfig = self.component_kubeconfig(component)
            config = {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "leaderElection": {"leaderElect": False},
                "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 1000},
            }
            path = self.layout.home / "kube-scheduler.json"
            path.write_text(json.dumps(config))
            return [
                binary,
                f"--config={path}",
                f"--secure-port={ports.scheduler}",
                "--bind-address=127.0.0.1",
            ]
        raise ClusterError(f"component {component!r} is unknown; one of: {', '.join(COMPONENTS)}")

    def start(self, component: str) -> None:
        self.processes.start(component, self.argv(component))

    def up(self, report: Report) -> None:
        """Start what is not running and wait until the API server is ready."""
        running = [name for name in COMPONENTS if self.processes.running(name)]
        if len(running) == len(COMPONENTS) and self.ready():
            return
        with report.step("control plane: " + ", ".join(COMPONENTS)):
            for component in COMPONENTS:
                self.start(component)
            self.wait_ready()

    def wait_ready(self, seconds: float = 120.0) -> None:
        """Raises ClusterError with the API server's last words when it does not become ready."""
        try:
            wait_until(
                self.ready, seconds, "API server ready", lambda: self.processes.running("kube-apiserver")
            )
        except ClusterError as error:
            raise ClusterError(f"{error}\n{self.processes.tail('kube-apiserver')}") from error

    def ready(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.load_cert_chain(self.authority.crt("admin"), self.authority.key("admin"))
        return http_ok(f"{self.server}/readyz", context)
