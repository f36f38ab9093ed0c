"""The cluster as a whole: the parts of each profile, and the order in which they start and stop."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from localcluster import (
    addons,
    cgroups,
    disks,
    dns,
    gangscheduler,
    images,
    jobset,
    kubeflowtrainer,
    kubernetesgangs,
    kueue,
    kwok,
    leak_check,
    machine_lock,
    network,
    packages,
    registry,
    requirements,
    systemimages,
)
from localcluster import trainingoperator as operator
from localcluster.addresses import BRIDGE, HOST, NODES
from localcluster.binaries import BY_PROFILE, Binaries
from localcluster.buildah import Buildah
from localcluster.console import Console
from localcluster.controlplane import (
    COMPONENTS,
    FAST_HEARTBEATS,
    JOB_THREADS,
    ControlPlane,
    Heartbeats,
    choose_ports,
)
from localcluster.errors import ClusterError
from localcluster.images import DEFAULT_IMAGES, Image
from localcluster.kubectl import Kubectl
from localcluster.lock import exclusive
from localcluster.node import Node
from localcluster.paths import Paths
from localcluster.processes import Processes, boot_id

Controller = jobset.JobSetController | kubeflowtrainer.KubeflowTrainer | kueue.KueueController
PORTS = {"control-plane": range(26400, 27400, 20), "full": range(6443, 7443, 20)}


class Cluster:
    """One profile's cluster of this checkout.

    `up` and `down` are idempotent. `node_stop` and `node_start` switch a node's power off and on;
    `component_stop` and `component_start` do the same to one process of the control plane.
    All methods raise ClusterError, whose message names the remedy.
    """

    def __init__(
        self,
        profile: str = "full",
        quiet: bool = False,
        heartbeats: Heartbeats = FAST_HEARTBEATS,
        job_threads: int = JOB_THREADS,
    ) -> None:
        self.paths, self.heartbeats, self.job_threads = Paths(profile), heartbeats, job_threads
        self.console = Console(quiet)
        self.processes = Processes(self.paths.home)
        self.binaries = Binaries(self.paths)
        self.kubectl = Kubectl(self.paths)
        self._controllers: dict[str, Controller] = {}  # Those that tests have started, by name.

    @property
    def profile(self) -> str:
        """`full` or `control-plane`."""
        return self.paths.profile

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.paths.kubeconfig

    @property
    def server(self) -> str:
        """The API server's URL."""
        return self._plane().server

    def _plane(self) -> ControlPlane:
        address = HOST if self.profile == "full" else "127.0.0.1"
        ports = choose_ports(self.paths.home / "ports.json", "127.0.0.1", PORTS[self.profile])
        preview, beats, threads = self.profile == "control-plane", self.heartbeats, self.job_threads
        placed = (self.paths, self.processes, address, ports)
        return ControlPlane(*placed, preview_apis=preview, heartbeats=beats, job_threads=threads)

    def _nodes(self) -> dict[str, Node]:
        plane = self._plane()
        return {address.name: Node(address, plane, self.kubectl) for address in NODES}

    def build(self) -> None:
        """Build the profile's programs, the first step of `up`: minutes the first time, then a second."""
        requirements.check_go(self.paths)
        self.binaries.build(BY_PROFILE[self.profile], self.console)

    def _exclusive(self) -> contextlib.AbstractContextManager[None]:
        path = self.paths.root / f"{self.profile}.lock"
        return exclusive(path, f"the {self.profile} cluster", self.console)

    def up(self) -> None:
        """Start what is not running. Raises MissingRequirementsError when this machine cannot run the
        profile."""
        if self.profile == "full":
            machine_lock.check(self.paths.checkout)
        requirements.check(self.paths)
        with self._exclusive():
            if self.profile == "full":
                self._up_full()
            else:
                self._up_control_plane()

    def _up_control_plane(self) -> None:
        self.binaries.build(BY_PROFILE[self.profile], self.console)
        if all(self.processes.running(name) for name in self.components()) and self._plane().ready():
            return
        plane = self._plane()
        plane.prepare()
        with ThreadPoolExecutor(1) as background:
            # Rendering takes as long as the API server needs to start.
            stock = background.submit(operator.manifests, self.binaries, self.kubectl)
            stages = background.submit(kwok.manifests, self.binaries, self.kubectl)
            plane.up(self.console)
            operator.HostTrainingOperator(plane, self.kubectl).up(stock.result(), self.console)
            kwok.Kwok(plane, self.kubectl).up(*stages.result(), self.console)

    def _up_full(self) -> None:
        machine_lock.acquire(self.paths.checkout)
        if not self.processes.live_pids():
            # A cluster whose processes were all killed, perhaps another checkout's, left these behind.
            cgroups.remove()
            network.down()
        self._discard_earlier_boot()
        packages.install(self.console)
        buildah = Buildah(self.paths)
        if stale := self.binaries.stale(BY_PROFILE[self.profile]):
            # Compiling uses the CPU while torch is downloaded.
            with ThreadPoolExecutor(1) as background:
                torch = background.submit(self._build_images, buildah)
                self.binaries.build(stale, self.console)
                with self.console.step("images of the operator and the trainer, built in parallel"):
                    torch.result()
        if self._complete():
            return
        requirements.check_namespaces(self.paths)
        systemimages.build_base(self.paths, buildah, self.console)
        systemimages.build_programs(self.paths, buildah, self.console)

        network.up()
        plane = self._plane()
        plane.prepare()
        with ThreadPoolExecutor(1) as background:
            stock = background.submit(operator.manifests, self.binaries, self.kubectl)
            registry.up(self.paths, self.processes, self.console)
            systemimages.push(buildah, self.console)
            plane.up(self.console)
            dns.up(plane, self.kubectl, self.console)
            self._start_nodes()
            with self.console.step("training-operator and storage class"):
                addons.install(plane, self.kubectl, self.binaries, stock.result())
        self._mark_complete()

    def _discard_earlier_boot(self) -> None:
        """Delete the state of an earlier boot: its processes are gone, and a power loss may have damaged its
        files."""
        mark = self.paths.home / "boot"
        if self.paths.home.exists() and not (mark.exists() and mark.read_text() == boot_id()):
            shutil.rmtree(self.paths.home)
        self.paths.home.mkdir(parents=True, exist_ok=True)
        mark.write_text(boot_id())

    def _build_images(self, buildah: Buildah) -> None:
        """Fill the layer cache. Errors are ignored: `images` builds again and reports them."""
        silent = Console(quiet=True)
        with contextlib.suppress(ClusterError):
            systemimages.build_base(self.paths, buildah, silent)
            for image in DEFAULT_IMAGES:
                images.build(self.paths, image, buildah, silent)

    def images(self, selected: Sequence[Image] = DEFAULT_IMAGES) -> None:
        """Build images, push what changed, and have every node pull them.

        Raises ClusterError when the cluster does not run.
        """
        if not self._complete():
            raise ClusterError("the full cluster is not running; start it with: python -m localcluster up")
        buildah = Buildah(self.paths)
        with self._exclusive():
            for image in selected:
                images.build(self.paths, image, buildah, self.console)
            present = images.PulledImages(self.paths.home / "pulled.json")
            fresh = {image: buildah.image_id(image.reference) for image in selected}
            changed = [image for image, image_id in fresh.items() if present.get(image) != image_id]
            if not changed:
                return
            for image in changed:
                images.push(image, buildah, self.console)
            images.pull(self.kubectl, [image.reference for image in changed], self.console)
            present.put({image: fresh[image] for image in changed})
            with self.console.step("delete the images that these replaced"):
                buildah.prune()
                registry.prune(self.paths)
                for node in self._nodes().values():
                    node.prune_images()

    def _start_nodes(self) -> None:
        nodes = self._nodes()
        with self.console.step(f"nodes: {', '.join(nodes)}, 8 simulated GPUs each"):
            for node in nodes.values():
                node.start()
            for node in nodes.values():
                node.wait_ready()
                node.label()

    @property
    def _completed(self) -> Path:
        return self.paths.home / "complete"

    def _mark_complete(self) -> None:
        self._completed.touch()

    def _complete(self) -> bool:
        """Whether everything that `up` starts is running and the add-ons are installed."""
        if not self._completed.exists():
            return False
        names = (*COMPONENTS, registry.NAME, dns.NAME, *(node.name for node in NODES))
        return all(self.processes.running(name) for name in names) and self._plane().ready()

    def down(self) -> None:
        """Kill every process and delete everything but caches.

        Raises ClusterError, and changes nothing, when the full cluster belongs to another checkout.
        """
        if not self.paths.home.exists() and not machine_lock.is_held_by(self.paths.checkout):
            return
        with self._exclusive():
            if self.profile == "full":
                self._down_full()
            else:
                self.processes.kill_all()
                operator.HostTrainingOperator(self._plane(), self.kubectl).remove_certificates()
            shutil.rmtree(self.paths.home, ignore_errors=True)

    def _down_full(self) -> None:
        if os.geteuid() != 0:
            raise ClusterError("the full cluster runs as root: stop it with sudo -E")
        machine_lock.acquire(self.paths.checkout)
        with self.console.step("stop the cluster"):
            self.processes.kill_all()
            cgroups.remove()
            network.down()
        if left := self._left_behind():
            raise ClusterError("left behind:\n" + "\n".join(left))
        machine_lock.release(self.paths.checkout)

    def _left_behind(self) -> list[str]:
        """What the cluster left on the machine, found by its process mark, its names and its folder."""
        now = leak_check.read_machine_state(self.paths.home)
        ours = (BRIDGE, cgroups.PREFIX, str(self.paths.root))
        found = now.added_since(leak_check.EMPTY)
        return [line for line in found if line.startswith("processes") or any(word in line for word in ours)]

    def status(self) -> dict[str, bool]:
        """Whether each recorded process is running, by name."""
        return {name: self.processes.running(name) for name in self.processes.names()}

    def components(self) -> tuple[str, ...]:
        """Names for `component_stop`: the control plane and the controllers that are host processes."""
        extra = (operator.NAME, kwok.NAME) if self.profile == "control-plane" else (dns.NAME,)
        return (*COMPONENTS, *extra, *self._controllers)

    def component_stop(self, name: str) -> None:
        """Kill one process, as a crash would."""
        self._require_component(name)
        self.processes.kill(name)

    def component_start(self, name: str) -> None:
        """Start a component again, and wait until it is ready where it has a readiness check."""
        self._require_component(name)
        plane = self._plane()
        if name == operator.NAME:
            operator.HostTrainingOperator(plane, self.kubectl).start()
        elif name == kwok.NAME:
            kwok.Kwok(plane, self.kubectl).start()
        elif name == dns.NAME:
            dns.up(plane, self.kubectl, self.console)
        elif name in self._controllers:
            self._controllers[name].start()
        else:
            plane.start(name)
            if name in ("etcd", "kube-apiserver"):
                plane.wait_ready()
                # A scheduler that lost its connection during a binding finds its cache inconsistent and
                # exits, by design; a kubelet would restart it.
                self.processes.kill("kube-scheduler")
                plane.start("kube-scheduler")

    @contextlib.contextmanager
    def component_down(self, name: str) -> Iterator[None]:
        """Stop `name` for the duration of the block."""
        self.component_stop(name)
        try:
            yield
        finally:
            self.component_start(name)

    @contextlib.contextmanager
    def gang_scheduling(self, *, pod_groups: bool = True) -> Iterator[str]:
        """Run a scheduler with Coscheduling for the duration of the block; yields its `schedulerName`.

        Without `pod_groups` the training-operator does not know of it and creates no PodGroups.
        """
        if self.profile != "control-plane":
            raise ClusterError("gang scheduling needs the profile control-plane")
        scheduler = gangscheduler.GangScheduler(self._plane(), self.kubectl, self.binaries)
        with scheduler.serving(self.console, pod_groups=pod_groups):
            yield gangscheduler.SCHEDULER

    def kubernetes_gangs(self) -> contextlib.AbstractContextManager[str]:
        """Run a scheduler with Kubernetes' own gangs during the block; yields its `schedulerName`."""
        if self.profile != "control-plane":
            raise ClusterError("gang scheduling needs the profile control-plane")
        return kubernetesgangs.KubernetesGangScheduler(self._plane()).serving()

    def jobsets(self) -> contextlib.AbstractContextManager[None]:
        """Run JobSet's controller for the duration of the block; its resource is deleted at the end."""
        controller = jobset.JobSetController(self._plane(), self.kubectl, self.binaries)
        return self._serving(jobset.NAME, controller)

    @contextlib.contextmanager
    def train_jobs(self) -> Iterator[None]:
        """Run Kubeflow Trainer and JobSet's controller for the duration of the block, as `jobsets` does."""
        with self.jobsets():
            trainer = kubeflowtrainer.KubeflowTrainer(self._plane(), self.kubectl, self.binaries)
            with self._serving(kubeflowtrainer.NAME, trainer):
                yield

    def kueue(self) -> contextlib.AbstractContextManager[None]:
        """Run Kueue, which manages jobs of all kinds that runs have, during the block, as `jobsets` does."""
        return self._serving(kueue.NAME, kueue.KueueController(self._plane(), self.kubectl, self.binaries))

    @contextlib.contextmanager
    def _serving(self, name: str, controller: Controller) -> Iterator[None]:
        try:
            controller.up(self.console)
            self._controllers[name] = controller
            yield
        finally:
            self._controllers.pop(name, None)
            controller.down()

    def _require_component(self, name: str) -> None:
        if name not in self.components():
            raise ClusterError(f"component {name!r} is unknown; one of: {', '.join(self.components())}")

    def _node(self, name: str) -> Node:
        if self.profile != "full":
            raise ClusterError("profile control-plane has no nodes; tests create fake ones")
        nodes = self._nodes()
        if name not in nodes:
            raise ClusterError(f"node {name!r} is unknown; one of: {', '.join(nodes)}")
        return nodes[name]

    @contextlib.contextmanager
    def small_disk(self, folder: Path, mebibytes: int) -> Iterator[None]:
        """Mount an empty disk of so many MiB over `folder`, for pods that start during the block.

        Raises ClusterError with the kernel's message.
        """
        inits = [init for node in self._nodes().values() if (init := node.init()) is not None]
        with disks.small_disk(folder, mebibytes, inits):
            yield

    def node_folder(self, name: str) -> Path:
        """The folder of the host that is the node's /var/lib. Raises ClusterError for an unknown node."""
        return self._node(name).home / "lib"

    def node_stop(self, name: str) -> None:
        """Switch a node's power off: its kubelet and all its containers end at once."""
        self._node(name).stop()

    def node_start(self, name: str) -> None:
        """Switch a node's power on and wait until it is Ready."""
        node = self._node(name)
        node.start()
        node.wait_ready()
