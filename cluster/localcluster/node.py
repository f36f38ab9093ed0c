"""One node: containerd, kubelet and kube-proxy in their own namespaces, under one PID 1.

Killing that PID 1 has the effect of a power loss: the kernel ends every process of the node and removes its
mounts and its network. Its disk (`NODE_LIB`) stays.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from localcluster import cgroups, network
from localcluster.addresses import (
    DNS_DOMAIN,
    HOST,
    NODES,
    POD_RANGE,
    PREFIX,
    REGISTRY,
    REGISTRY_PORT,
    NodeAddress,
)
from localcluster.commands import run
from localcluster.controlplane import ControlPlane
from localcluster.errors import ClusterError
from localcluster.kubectl import Kubectl
from localcluster.pki import Certificate
from localcluster.processes import wait_until

INIT = Path(__file__).parent / "data" / "node-init.sh"
PAUSE_IMAGE = f"{REGISTRY}/pause:1"
CNI_DIRECTORIES = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
LABELS = {
    "nvidia.com/gpu.product": "SIMULATED-ON-CPU",
    "megatron.training/simulated-gpu": "true",
    "topology.kubernetes.io/zone": "local",
    "topology.kubernetes.io/rack": "rack-0",
}


def cni_plugins() -> Path | None:
    """Folder of the CNI plugins; None where they are not installed."""
    return next((path for path in CNI_DIRECTORIES if (path / "bridge").exists()), None)


def untagged(listing: str) -> list[str]:
    """The references in `ctr images list` whose content has no tag.

    containerd lists an image by tag, by digest (`name@sha256:...`) and by id (`sha256:...`).
    """
    digests = {line.split()[0]: line.split()[2] for line in listing.splitlines()[1:]}
    tagged = {
        digest for reference, digest in digests.items() if "@" not in reference and "sha256:" not in reference
    }
    return sorted(reference for reference, digest in digests.items() if digest not in tagged)


class Node:
    """One node of the full profile."""

    def __init__(self, address: NodeAddress, plane: ControlPlane, kubectl: Kubectl) -> None:
        self.address = address
        self.plane = plane
        self.kubectl = kubectl
        self.home = plane.paths.home / "nodes" / address.name
        # Images are a cache that outlives the cluster.
        self.containerd_root = plane.paths.cache / "nodes" / address.name / "containerd"

    @property
    def name(self) -> str:
        """Name of the Node object."""
        return self.address.name

    @property
    def running(self) -> bool:
        """Whether the node's own process runs."""
        return self.plane.processes.running(self.name)

    def containerd_config(self) -> str:
        """containerd's configuration in format 2, which containerd 1.6 to 2 support."""
        plugins = cni_plugins()
        return f"""version = 2
root = "{self.containerd_root}"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Lowering the OOM score needs CAP_SYS_RESOURCE; pods start without it only with this setting.
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  # The torch layer has gigabytes: do not keep the archive of unpacked layers.
  discard_unpacked_layers = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{plugins}"
  conf_dir = "{self.home / "cni"}"
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "{self.home / "registries"}"
"""

    def cni_config(self) -> dict[str, object]:
        """The configuration of the pod network."""
        return {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        # In /run: addresses are free again after a restart of the node.
                        "dataDir": "/run/cni-addresses",
                        "ranges": [[{"subnet": self.address.pods}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }

    def kubelet_config(self) -> dict[str, object]:
        """The KubeletConfiguration."""
        authority = self.plane.authority
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(authority.crt(self.name)),
            "tlsPrivateKeyFile": str(authority.key(self.name)),
            "clusterDomain": DNS_DOMAIN,
            "clusterDNS": [HOST],
            "resolvConf": "",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroups.name_of(self.name)}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            # Two nodes share one disk: neither may evict pods because the other one fills it.
            "evictionHard": {},
            "imageGCHighThresholdPercent": 100,
            "serializeImagePulls": False,
            "nodeStatusUpdateFrequency": "5s",
            "nodeLeaseDurationSeconds": 20,
        }

    def kube_proxy_config(self) -> dict[str, object]:
        """The KubeProxyConfiguration."""
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.plane.component_kubeconfig("kube-proxy"))},
            "mode": "iptables",
            "clusterCIDR": POD_RANGE,
            "hostnameOverride": self.name,
            "conntrack": {"maxPerCore": 0},
        }

    def prepare(self) -> None:
        """Write the node's configuration and certificates."""
        authority = self.plane.authority
        authority.sign(
            Certificate(
                self.name, f"system:node:{self.name}", "system:nodes", (self.name, self.address.address)
            )
        )
        for folder in ("cni", "log", "lib/kubelet/device-plugins", "logs", f"registries/{REGISTRY}"):
            (self.home / folder).mkdir(parents=True, exist_ok=True)
        self.containerd_root.mkdir(parents=True, exist_ok=True)
        authority.kubeconfig(self.name, self.plane.server, self.home / "kubeconfig")
        (self.home / "containerd.toml").write_text(self.containerd_config())
        (self.home / "cni" / "10-pods.conflist").write_text(json.dumps(self.cni_config()))
        (self.home / "kubelet.json").write_text(json.dumps(self.kubelet_config()))
        (self.home / "kube-proxy.json").write_text(json.dumps(self.kube_proxy_config()))
        (self.home / "registries" / REGISTRY / "hosts.toml").write_text(
            f'[host."http://{HOST}:{REGISTRY_PORT}"]\n  capabilities = ["pull", "resolve"]\n'
        )

    def start(self) -> None:
        """Switch the power on. Returns once the namespaces exist; `wait_ready` waits for the kubelet.

        Raises ClusterError when the node ends at once.
        """
        if self.running:
            if self.address.host_link in network.links():
                return
            # Left by an `up` that was killed before it connected the node.
            self.stop()
        self.prepare()
        cgroups.create(self.name)
        (self.home / "started").touch()
        peers = " ".join(f"{peer.pods}={peer.address}" for peer in NODES if peer.name != self.name)
        namespaces = ("--mount", "--pid", "--net", "--uts", "--ipc", "--mount-proc")
        parent = self.plane.processes.start(
            self.name,
            ["unshare", *namespaces, "--fork", "--kill-child", "--propagation", "slave", "bash", INIT],
            {
                "NODE": self.name,
                "NODE_ADDRESS": self.address.address,
                "NODE_PREFIX": str(PREFIX),
                "HOST_ADDRESS": HOST,
                "PEERS": peers,
                "NODE_HOME": str(self.home),
                "NODE_LIB": str(self.home / "lib"),
                "BIN": str(self.plane.paths.bin),
            },
        )
        wait_until(
            lambda: self.init_pid(parent) is not None, 10, f"{self.name} to start", lambda: self.running
        )
        init = self.init_pid(parent)
        if init is None:
            raise ClusterError(f"{self.name} ended at once: {self.plane.processes.tail(self.name)}")
        network.connect(self.address, init)

    @staticmethod
    def init_pid(parent: int) -> int | None:
        """The host's PID of the node's PID 1, the only child of `unshare`, whose PID is `parent`.

        None while there is no child.
        """
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        except FileNotFoundError:
            return None
        return int(children[0]) if children else None

    def wait_ready(self, seconds: float = 120.0) -> None:
        """Wait until the node is Ready with its 8 simulated GPUs. Raises ClusterError with its last
        output."""

        def ready() -> bool:
            if not self.kubectl.exists("node", self.name) or not self._leased_since_start():
                return False
            status = self.kubectl.get("node", self.name)["status"]
            conditions = {item["type"]: item["status"] for item in status.get("conditions", [])}
            return conditions.get("Ready") == "True" and status["allocatable"].get("nvidia.com/gpu") == "8"

        try:
            wait_until(ready, seconds, f"{self.name} ready", lambda: self.running)
        except ClusterError as error:
            kubelet = self.home / "logs" / "kubelet.log"
            last = kubelet.read_text(errors="replace").splitlines()[-10:] if kubelet.exists() else []
            raise ClusterError(
                "\n".join([str(error), *last, self.plane.processes.tail(self.name)])
            ) from error

    def _leased_since_start(self) -> bool:
        """Whether the kubelet has renewed its lease since the node was started."""
        args = ("lease", self.name, "--namespace=kube-node-lease")
        if not self.kubectl.exists(*args):
            return False
        renewed = datetime.fromisoformat(self.kubectl.get(*args)["spec"]["renewTime"])
        return renewed.timestamp() > (self.home / "started").stat().st_mtime

    def label(self) -> None:
        """Set LABELS on the node object."""
        args = [f"{name}={value}" for name, value in LABELS.items()]
        self.kubectl.run("label", "--overwrite", "node", self.name, *args)

    def stop(self) -> None:
        """Switch the power off: the kubelet and every container end at once."""
        parent = self.plane.processes.record(self.name)
        init = self.init_pid(parent.pid) if parent else None
        self.plane.processes.kill(self.name)
        if init is not None:
            wait_until(lambda: not Path(f"/proc/{init}").exists(), 30, f"{self.name} to end")

    def prune_images(self) -> None:
        """Delete images that lost their tag; running containers keep what they use.

        Raises ClusterError when the node is off.
        """
        ctr = [*self.enter(), "ctr", "--namespace", "k8s.io", "images"]
        if references := untagged(run([*ctr, "list"])):
            run([*ctr, "remove", "--sync", *references])

    def init(self) -> int | None:
        """The host's PID of the node's PID 1; None when the node is off."""
        record = self.plane.processes.record(self.name)
        return self.init_pid(record.pid) if record and self.running else None

    def enter(self) -> list[str]:
        """The command prefix that enters the node's namespaces. Raises ClusterError when the node is off."""
        if (init := self.init()) is None:
            raise ClusterError(f"{self.name} is not running; start it with `node_start`")
        return ["nsenter", "--target", str(init), "--mount", "--pid", "--net", "--uts", "--ipc"]
