"""The cluster as a whole: which parts a profile has, in which order they come and go."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from localcluster import (
    cgroups,
    disks,
    dns,
    images,
    kwok,
    leak_check,
    lock,
    machine_lock,
    network,
    packages,
    registry,
    requirements,
    storage,
    systemimages,
)
from localcluster import trainingoperator as operator
from localcluster.addresses import BRIDGE, HOST, NODES, SYSTEM_NODE
from localcluster.binaries import BY_PROFILE, Binaries
from localcluster.buildah import Buildah
from localcluster.console import Report
from localcluster.controlplane import COMPONENTS, ControlPlane, choose_ports
from localcluster.errors import ClusterError
from localcluster.kubectl import Kubectl, Object
from localcluster.node import Node
from localcluster.paths import Layout
from localcluster.processes import Processes, boot_id

PORTS = {"control-plane": range(26400, 27400, 20), "full": range(6443, 7443, 20)}


class Cluster:
    """One profile's cluster of this checkout.

    `up` and `down` are idempotent. `node_stop` and `node_start` cut a node's power and give it back;
    `component_stop` and `component_start` do the same to one process of the control plane.
    All methods raise ClusterError, whose text names the mend.
    """

    def __init__(self, profile: str = "full", quiet: bool = False) -> None:
        self.layout = Layout(profile)
        self.report = Report(quiet)
        self.processes = Processes(self.layout.home)
        self.binaries = Binaries(self.layout)
        self.kubectl = Kubectl(self.layout)

    @property
    def profile(self) -> str:
        return self.layout.profile

    @property
    def kubeconfig(self) -> Path:
        return self.layout.kubeconfig

    @property
    def server(self) -> str:
        """The API server's URL."""
        return self._plane().server

    def _plane(self) -> ControlPlane:
        address = HOST if self.profile == "full" else "127.0.0.1"
        ports = choose_ports(self.layout.home / "ports.json", "127.0.0.1", PORTS[self.profile])
        return ControlPlane(self.layout, self.processes, address, ports)

    def _nodes(self) -> dict[str, Node]:
        plane = self._plane()
        return {address.name: Node(address, plane, self.kubectl) for address in NODES}

    def build(self) -> None:
        """Build the profile's programs, which `up` does first: minutes once, a second from then on."""
        requirements.check_go(self.layout)
        self.binaries.build(BY_PROFILE[self.profile], self.report)

    def _exclusive(self) -> contextlib.AbstractContextManager[None]:
        path = self.layout.root / f"{self.profile}.lock"
        return lock.exclusive(path, f"the {self.profile} cluster", self.report)

    def up(self) -> None:
        """Bring up what is not up. Raises MissingRequirements when the machine cannot."""
        if self.profile == "full":
            machine_lock.check(self.layout.checkout)
        requirements.check(self.layout)
        with self._exclusive():
            if self.profile == "full":
                self._up_full()
            else:
                self._up_control_plane()

    def _up_control_plane(self) -> None:
        self.binaries.build(BY_PROFILE[self.profile], self.report)
        if all(self.processes.running(name) for name in self.components()) and self._plane().ready():
            return
        plane = self._plane()
        plane.prepare()
        with ThreadPoolExecutor(1) as background:
            # Rendering takes as long as the API server needs to start.
            stock = background.submit(operator.manifests, self.binaries, self.kubectl)
            stages = background.submit(kwok.manifests, self.binaries, self.kubectl)
            plane.up(self.report)
            operator.HostTrainingOperator(plane, self.kubectl).up(stock.result(), self.report)
            kwok.Kwok(plane, self.kubectl).up(*stages.result(), self.report)

    def _up_full(self) -> None:
        machine_lock.take(self.layout.checkout)
        self._forget_earlier_boot()
        packages.install(self.report)
        buildah = Buildah(self.layout)
        if stale := self.binaries.stale(BY_PROFILE[self.profile]):
            # While the compiler keeps the processors busy, the network is free for torch.
            with ThreadPoolExecutor(1) as background:
                torch = background.submit(self._build_images, buildah)
                self.binaries.build(stale, self.report)
                with self.report.step("images of the operator and the trainer, begun beside the build"):
                    torch.result()
        if self._complete():
            return
        requirements.check_namespaces(self.layout)
        systemimages.build_base(self.layout, buildah, self.report)
        systemimages.build_programs(self.layout, buildah, self.report)

        network.up()
        plane = self._plane()
        plane.prepare()
        with ThreadPoolExecutor(1) as background:
            stock = background.submit(operator.manifests, self.binaries, self.kubectl)
            registry.up(self.layout, self.processes, self.report)
            systemimages.push(buildah, self.report)
            plane.up(self.report)
            dns.up(plane, self.kubectl, self.report)
            self._start_nodes()
            with self.report.step("training-operator and storage class"):
                self._install_addons(plane, stock.result())
        self._mark_complete()

    def _forget_earlier_boot(self) -> None:
        """After a reboot nothing of a cluster is left but its files, which a power cut may have broken."""
        mark = self.layout.home / "boot"
        if self.layout.home.exists() and not (mark.exists() and mark.read_text() == boot_id()):
            shutil.rmtree(self.layout.home)
        self.layout.home.mkdir(parents=True, exist_ok=True)
        mark.write_text(boot_id())

    def _build_images(self, buildah: Buildah) -> None:
        """Fill the layers' cache. What fails here is told by `images`, which builds them again."""
        silent = Report(quiet=True)
        with contextlib.suppress(ClusterError):
            systemimages.build_base(self.layout, buildah, silent)
            for image in images.IMAGES:
                images.build(self.layout, image, buildah, silent)

    def images(self, names: Sequence[str] = ()) -> None:
        """Build the project's images (or those named), push what changed, and have every node pull them.

        Raises ClusterError when the cluster does not run.
        """
        wanted = [images.named(name) for name in names] or list(images.IMAGES)
        if not self._complete():
            raise ClusterError("the full cluster does not run: python -m localcluster up")
        buildah = Buildah(self.layout)
        with self._exclusive():
            for image in wanted:
                images.build(self.layout, image, buildah, self.report)
            present = images.Pulled(self.layout.home / "pulled.json")
            fresh = {image: buildah.image_id(image.reference) for image in wanted}
            changed = [image for image, made in fresh.items() if present.get(image) != made]
            if not changed:
                return
            for image in changed:
                images.push(image, buildah, self.report)
            images.pull(self.kubectl, [image.reference for image in changed], self.report)
            present.put({image: fresh[image] for image in changed})
            with self.report.step("forget what these images replaced"):
                buildah.prune()
                registry.prune(self.layout)
                for node in self._nodes().values():
                    node.prune_images()

    def _start_nodes(self) -> None:
        nodes = self._nodes()
        with self.report.step(f"nodes: {', '.join(nodes)}, 8 simulated GPUs each"):
            for node in nodes.values():
                node.start()
            for node in nodes.values():
                node.wait_ready()
                node.label()

    def _install_addons(self, plane: ControlPlane, stock: list[Object]) -> None:
        certificates = operator.WebhookCertificates(self.layout.pki / "webhook")
        certificates.create()
        stock = certificates.fill(stock)
        place = {"kubernetes.io/hostname": SYSTEM_NODE}
        images = (systemimages.TRAINING_OPERATOR_IMAGE, systemimages.BASE_IMAGE)
        self.kubectl.apply(operator.in_cluster(stock, *images, place))
        storage.install(plane, self.kubectl, self.binaries)
        for namespace, name in (
            (operator.NAMESPACE, operator.NAME),
            (storage.NAMESPACE, "local-path-provisioner"),
        ):
            self.kubectl.run("rollout", "status", "-n", namespace, f"deployment/{name}", "--timeout=120s")

    @property
    def _completed(self) -> Path:
        return self.layout.home / "complete"

    def _mark_complete(self) -> None:
        self._completed.touch()

    def _complete(self) -> bool:
        """Whether all that `up` starts runs, add-ons installed."""
        if not self._completed.exists():
            return False
        names = (*COMPONENTS, registry.NAME, dns.NAME, *(node.name for node in NODES))
        return all(self.processes.running(name) for name in names) and self._plane().ready()

    def down(self) -> None:
        """End every process, remove every trace, delete the profile's state. Caches stay.

        Raises ClusterError when the machine's full cluster is another checkout's: nothing is touched then.
        """
        if not self.layout.home.exists() and not machine_lock.is_ours(self.layout.checkout):
            return
        with self._exclusive():
            if self.profile == "full":
                self._down_full()
            else:
                self.processes.kill_all()
                operator.HostTrainingOperator(self._plane(), self.kubectl).remove_certificates()
            shutil.rmtree(self.layout.home, ignore_errors=True)

    def _down_full(self) -> None:
        if os.geteuid() != 0:
            raise ClusterError("the full cluster runs as root: stop it with sudo -E")
        machine_lock.take(self.layout.checkout)
        with self.report.step("stop the cluster"):
            self.processes.kill_all()
            cgroups.remove()
            network.down()
        if left := self._left_behind():
            raise ClusterError("left behind:\n" + "\n".join(left))
        machine_lock.release(self.layout.checkout)

    def _left_behind(self) -> list[str]:
        """What of ours is still on the machine: by our mark, our names and our folder."""
        now = leak_check.take(self.layout.home)
        ours = (BRIDGE, cgroups.PREFIX, str(self.layout.root))
        found = now.since(leak_check.NONE)
        return [line for line in found if line.startswith("processes") or any(word in line for word in ours)]

    def status(self) -> dict[str, bool]:
        """Each recorded process, and whether it runs."""
        return {name: self.processes.running(name) for name in self.processes.names()}

    def components(self) -> tuple[str, ...]:
        """What `component_stop` takes: also the operators that are processes, where there are no nodes."""
        extra = (operator.NAME, kwok.NAME) if self.profile == "control-plane" else (dns.NAME,)
        return (*COMPONENTS, *extra)

    def component_stop(self, name: str) -> None:
        """End one process, as a crash of it would."""
        self._known(name)
        self.processes.kill(name)

    def component_start(self, name: str) -> None:
        """Start it again with the same command line, and wait until it works where that can be seen."""
        self._known(name)
        plane = self._plane()
        if name == operator.NAME:
            operator.HostTrainingOperator(plane, self.kubectl).start()
        elif name == kwok.NAME:
            kwok.Kwok(plane, self.kubectl).start()
        elif name == dns.NAME:
            dns.up(plane, self.kubectl, self.report)
        else:
            plane.start(name)
            if name in ("etcd", "kube-apiserver"):
                plane.wait_ready()
                # A scheduler that was cut off in a binding finds its cache wrong afterwards and ends itself,
                # as it should; a kubelet would start it anew.
                self.processes.kill("kube-scheduler")
                plane.start("kube-scheduler")

    @contextlib.contextmanager
    def component_away(self, name: str) -> Iterator[None]:
        """Without `name` for as long as the block runs."""
        self.component_stop(name)
        try:
            yield
        finally:
            self.component_start(name)

    def _known(self, name: str) -> None:
        if name not in self.components():
            raise ClusterError(f"component {name!r} is unknown; one of: {', '.join(self.components())}")

    def _node(self, name: str) -> Node:
        if self.profile != "full":
            raise ClusterError("profile control-plane has no nodes of its own: tests create fake ones")
        nodes = self._nodes()
        if name not in nodes:
            raise ClusterError(f"node {name!r} is unknown; one of: {', '.join(nodes)}")
        return nodes[name]

    @contextlib.contextmanager
    def small_disk(self, folder: Path, mebibytes: int) -> Iterator[None]:
        """An empty disk of that size in place of `folder`, for pods that start while the block runs."""
        inits = [init for node in self._nodes().values() if (init := node.init()) is not None]
        with disks.small_disk(folder, mebibytes, inits):
            yield

    def node_stop(self, name: str) -> None:
        """Cut a node's power: its kubelet and all its containers end at once."""
        self._node(name).stop()

    def node_start(self, name: str) -> None:
        """Give a node its power back and wait until it is Ready."""
        node = self._node(name)
        node.start()
        node.wait_ready()
