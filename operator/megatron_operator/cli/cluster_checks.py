"""What a run needs of a cluster: each check is a pure function of the objects that were read."""

import re
from collections.abc import Callable, Iterable, Iterator

from megatron_operator.api import quantity
from megatron_operator.api.labels import GROUP, PLURAL
from megatron_operator.api.platform import CpuJobs, PlatformConfig
from megatron_operator.catalog.discovery import PRODUCT, PRODUCTS, with_nodes
from megatron_operator.cli.cluster_objects import ClusterObjects, Finding, Object, crd_names, unreadable
from megatron_operator.cli.gang_checks import gang_scheduling
from megatron_operator.cli.job_needs import NEEDS, available, chosen_backend
from megatron_operator.lifecycle.capacity import is_schedulable

RECIPES = f"{PLURAL}.{GROUP}"
UI = "megatron-ui"
"""The chart's other Deployment, which has the operator's image."""
LEAST_VERSION = (1, 29)
"""Oldest Kubernetes release that the chart is for."""
_INSTALL_OPERATOR = (
    "helm upgrade --install megatron-operator charts/megatron-operator -n megatron-system --create-namespace "
    "-f values.yaml (docs/installation.md)"
)
_ONE_NODE_PROVISIONERS = {
    "ebs.csi.aws.com": "EFS or FSx for Lustre",
    "disk.csi.azure.com": "Azure Files or Managed Lustre",
    "pd.csi.storage.gke.io": "Filestore or Managed Lustre",
    "rancher.io/local-path": "NFS, CephFS or Lustre",
    "kubernetes.io/no-provisioner": "NFS, CephFS or Lustre",
}
"""Provisioner whose volumes one node mounts at a time -> what to use for runs of several nodes."""
_FABRIC = re.compile(r"rdma|infiniband|/hca|/ib|\befa\b|sriov|roce", re.IGNORECASE)

Check = Callable[[ClusterObjects, PlatformConfig | None], Iterator[Finding]]


def run_checks(objects: ClusterObjects, platform: PlatformConfig | None) -> list[Finding]:
    """All findings in the order of an installation. Without a platform, GPUs are `nvidia.com/gpu`."""
    return [finding for check in CHECKS for finding in check(objects, platform)]


def kubernetes(objects: ClusterObjects, _platform: PlatformConfig | None) -> Iterator[Finding]:
    """The release of the API server."""
    server = objects.version.get("serverVersion") or {}
    digits = [re.match(r"\d+", str(server.get(part) or "")) for part in ("major", "minor")]
    name = str(server.get("gitVersion") or "of an unknown release")
    if not all(digits):
        yield Finding("Kubernetes", "unknown", f"the API server is {name}")
        return
    found = tuple(int(match.group()) for match in digits if match)
    least = ".".join(map(str, LEAST_VERSION))
    if found < LEAST_VERSION:
        yield Finding("Kubernetes", "missing", f"the API server is {name}", f"upgrade it to {least} or later")
    else:
        yield Finding("Kubernetes", "ok", name)


def training_jobs(objects: ClusterObjects, platform: PlatformConfig | None) -> Iterator[Finding]:
    """The CustomResourceDefinitions of the training jobs, and the Deployments that act on them."""
    backend = chosen_backend(platform, crd_names(objects))
    other = available(backend, crd_names(objects))
    hint = "" if other is None else f"; or set jobBackend: {other} in the platform, which the cluster has"
    for need in NEEDS[backend]:
        yield from _crd(objects, need.kind, need.crd, need.fix + hint)
        yield from _deployment(objects, need.controllers, need.fix)


def megatron_operator(objects: ClusterObjects, _platform: PlatformConfig | None) -> Iterator[Finding]:
    """Our CustomResourceDefinition and Deployment."""
    yield from _crd(objects, "MegatronRecipe", RECIPES, _INSTALL_OPERATOR)
    yield from _deployment(objects, ("megatron-operator",), _INSTALL_OPERATOR)


def storage(objects: ClusterObjects, platform: PlatformConfig | None) -> Iterator[Finding]:
    """A storage class for checkpoints and data: the platform's, or the cluster's default."""
    check = "storage class"
    if objects.storage_classes is None:
        yield unreadable(objects, check, "storage_classes")
        return
    known = {each["metadata"]["name"]: each for each in objects.storage_classes}
    listed = ", ".join(sorted(known)) or "none"
    named = [
        name
        for name in (
            (platform.checkpoint.storage_class_name, platform.data_storage_class_name) if platform else ()
        )
        if name is not None
    ]
    lost = [name for name in dict.fromkeys(named) if name not in known]
    for name in lost:
        fix = "create it, or correct checkpoint.storageClassName and dataStorageClassName of the platform"
        yield Finding(check, "missing", f"the platform names {name}; the cluster has {listed}", fix)
    if lost:
        return
    used = list(dict.fromkeys(named)) or [name for name, each in known.items() if _is_default(each)]
    if not known:
        fix = "install a CSI driver with ReadWriteMany volumes: NFS, CephFS, Lustre, FSx, Filestore"
        yield Finding(check, "missing", "the cluster has none", fix)
    elif not used:
        fix = f"set checkpoint.storageClassName of the platform (there are {listed})"
        yield Finding(check, "warning", "none is the default, and no platform file names one", fix)
    for name in used:
        provisioner = str(known[name].get("provisioner"))
        if other := _ONE_NODE_PROVISIONERS.get(provisioner):
            message = f"{name} ({provisioner}) has volumes that one node mounts at a time"
            yield Finding(check, "warning", message, f"for runs of several nodes use {other}")
        else:
            message = f"{name} ({provisioner}); runs of several nodes need ReadWriteMany of it"
            yield Finding(check, "ok", message)


def accelerators(objects: ClusterObjects, platform: PlatformConfig | None) -> Iterator[Finding]:
    """Nodes with accelerators, and the labels from which the operator knows their type."""
    if objects.nodes is None:
        yield unreadable(objects, "accelerators", "nodes")
        return
    profiles = platform.accelerators.items() if platform and platform.accelerators else ()
    for name, profile in profiles:
        check = f"accelerators {name}"
        resource = profile.resource_name
        labelled = [n for n in objects.nodes if profile.node_labels.items() <= _labels(n).items()]
        if not labelled:
            labels = ", ".join(f"{key}={value}" for key, value in profile.node_labels.items())
            fix = "label the nodes, or correct nodeLabels of the profile"
            yield Finding(check, "missing", f"no node has the labels {labels or '(no nodes)'}", fix)
        elif resource is None:
            yield Finding(check, "ok", _nodes(len(labelled)))
        else:
            yield _allocatable(check, resource, labelled)
    if not profiles:
        yield _allocatable("accelerators", "nvidia.com/gpu", objects.nodes)
        yield from _products([n for n in objects.nodes if _amount(n, "nvidia.com/gpu")])
    yield from _smaller_nodes(objects.nodes, platform)


def cpu_jobs(objects: ClusterObjects, platform: PlatformConfig | None) -> Iterator[Finding]:
    """A node for the Jobs that prepare data and convert weights, which tolerate no taints of accelerators."""
    jobs = (platform.cpu_jobs if platform else None) or CpuJobs()
    if not objects.nodes or any(is_schedulable(node, jobs.wire()) for node in objects.nodes):
        return
    message = "no node takes pods of the Jobs that prepare data and convert weights"
    tainted = sorted({key for node in objects.nodes for key in _taints(node)})
    if tainted:
        message += f"; there are taints {', '.join(tainted):.200}"
    fix = "set tolerations of cpuJobs of the platform, and labels in nodeSelector that nodes have"
    yield Finding("nodes for CPU Jobs", "warning", message, fix)


def fabric(objects: ClusterObjects, platform: PlatformConfig | None) -> Iterator[Finding]:
    """RDMA: resources of a device plugin on nodes with GPUs; those that the platform requests."""
    if objects.nodes is None:
        return
    requested = {
        resource
        for profile in (platform.accelerators.values() if platform else ())
        for resource in profile.extra_resources
    }
    offered = {name for node in objects.nodes for name in _allocatable_of(node) if _amount(node, name)}
    for resource in sorted(requested - offered):
        fix = "install its device plugin, or remove it from extraResources of the platform"
        yield Finding("RDMA", "missing", f"the platform requests {resource}; no node has it", fix)
    gpu_nodes = [node for node in objects.nodes if _amount(node, "nvidia.com/gpu")]
    found = sorted(name for name in offered if _FABRIC.search(name))
    if found:
        yield Finding("RDMA", "ok", ", ".join(found))
    elif len(gpu_nodes) > 1 and not requested:
        fix = "install the device plugin of the adapters and request it in extraResources (docs/platform.md)"
        message = f"{len(gpu_nodes)} nodes with GPUs and no RDMA resource: NCCL uses TCP between nodes"
        yield Finding("RDMA", "warning", message, fix)


def pod_security(objects: ClusterObjects, platform: PlatformConfig | None) -> Iterator[Finding]:
    """The level of Pod Security that the namespace enforces."""
    check = f"namespace {objects.namespace}"
    if objects.namespaces is None:
        yield unreadable(objects, check, "namespaces")
        return
    found = next((each for each in objects.namespaces if each["metadata"]["name"] == objects.namespace), None)
    if found is None:
        fix = f"kubectl create namespace {objects.namespace}"
        yield Finding(check, "missing", "does not exist", fix)
        return
    level = _labels(found).get("pod-security.kubernetes.io/enforce")
    if level != "restricted":
        yield Finding(check, "ok", f"Pod Security enforces {level or 'nothing'}")
    elif chosen_backend(platform, crd_names(objects)) != "pytorchjob":
        yield Finding(check, "ok", "Pod Security enforces restricted, with which JobSet's pods comply")
    elif any(
        "--pytorch-init-container-template-file" in " ".join(_arguments(d))
        for d in _named(objects, "training-operator")
    ):
        yield Finding(
            check, "ok", "Pod Security enforces restricted; training-operator has a template of its own"
        )
    else:
        message = (
            "Pod Security enforces restricted, which the training-operator's default init container violates"
        )
        fix = "start it with --pytorch-init-container-template-file (docs/platform.md, Pod Security)"
        yield Finding(check, "missing", message, fix)


CHECKS: tuple[Check, ...] = (
    kubernetes,
    training_jobs,
    megatron_operator,
    storage,
    accelerators,
    cpu_jobs,
    fabric,
    gang_scheduling,
    pod_security,
)
"""In the order in which a cluster is set up."""


def _crd(objects: ClusterObjects, kind: str, name: str, fix: str) -> Iterator[Finding]:
    if objects.crds is None:
        yield unreadable(objects, kind, "crds")
    elif any(each["metadata"]["name"] == name for each in objects.crds):
        yield Finding(kind, "ok", f"{name} is defined")
    else:
        yield Finding(kind, "missing", f"{name} is not defined", fix)


def _deployment(objects: ClusterObjects, names: tuple[str, ...], fix: str) -> Iterator[Finding]:
    """The controller that has one of these names; the finding has the first."""
    name = names[0]
    if objects.deployments is None:
        yield unreadable(objects, name, "deployments")
        return
    found = _named(objects, *names)
    ready = [each for each in found if (each.get("status") or {}).get("availableReplicas")]
    if ready:
        metadata = ready[0]["metadata"]
        replicas = ready[0]["status"]["availableReplicas"]
        yield Finding(
            name, "ok", f"{metadata['namespace']}/{metadata['name']}, available replicas: {replicas}"
        )
    elif found:
        metadata = found[0]["metadata"]
        where = f"{metadata['namespace']}/{metadata['name']}"
        advice = f"kubectl -n {metadata['namespace']} describe deployment {metadata['name']}"
        yield Finding(name, "missing", f"{where} has no available replica", advice)
    else:
        yield Finding(name, "missing", "no Deployment of it (it may run outside the cluster)", fix)


def _named(objects: ClusterObjects, *names: str) -> list[Object]:
    """Deployments with one of these names or such a label, or whose image has it."""
    image = re.compile(rf"(^|/)({'|'.join(map(re.escape, names))})[:@]")
    return [
        each
        for each in objects.deployments or ()
        if (labelled := _names_of(each)) & set(names)
        or (UI not in labelled and any(image.search(c.get("image") or "") for c in _containers(each)))
    ]


def _names_of(deployment: Object) -> set[str | None]:
    return {deployment["metadata"]["name"], _labels(deployment).get("app.kubernetes.io/name")}


def _containers(deployment: Object) -> list[Object]:
    pod = ((deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
    return list(pod.get("containers") or [])


def _arguments(deployment: Object) -> list[str]:
    return [
        str(word)
        for c in _containers(deployment)
        for word in (*(c.get("command") or ()), *(c.get("args") or ()))
    ]


def _allocatable(check: str, resource: str, nodes: Iterable[Object]) -> Finding:
    """How many accelerators nodes offer that take pods."""
    having = [node for node in nodes if _amount(node, resource)]
    if not having:
        fix = "install the device plugin (NVIDIA GPU Operator), or set resourceName of the profile"
        return Finding(check, "missing", f"no node has {resource} to allocate", fix)
    usable = [n for n in having if _is_ready(n) and not (n.get("spec") or {}).get("unschedulable")]
    total = sum(_amount(node, resource) for node in usable)
    message = f"{total} {resource} on {_nodes(len(usable))}"
    if len(usable) == len(having):
        return Finding(check, "ok", message)
    out = ", ".join(n["metadata"]["name"] for n in having if n not in usable)
    message += f"; not ready or cordoned: {out:.200}"
    return Finding(check, "warning" if usable else "missing", message, "see kubectl get nodes")


def _smaller_nodes(nodes: list[Object], platform: PlatformConfig | None) -> Iterator[Finding]:
    """Nodes with fewer accelerators than the pods of a whole node of their kind request."""
    discovered = with_nodes(platform or PlatformConfig(), map(_labels, nodes))
    for name, profile in discovered.accelerators.items():
        resource, labels = profile.resource_name, profile.node_labels.items()
        if resource is None or not labels:  # Without labels the nodes may be of several kinds.
            continue
        amounts = {n["metadata"]["name"]: _amount(n, resource) for n in nodes if labels <= _labels(n).items()}
        smaller = [f"{node} ({has})" for node, has in amounts.items() if 0 < has < profile.per_node]
        if smaller:
            message = f"fewer than the {profile.per_node} {resource} of a node: {', '.join(smaller):.200}"
            fix = "repair them: pods of whole nodes do not fit there; or give them a profile with perNode"
            yield Finding(f"accelerators {name}", "warning", message, fix)


def _products(nodes: list[Object]) -> Iterator[Finding]:
    check = "GPU labels"
    if not nodes:
        return
    bare = [node["metadata"]["name"] for node in nodes if PRODUCT not in _labels(node)]
    if bare:
        message = f"{len(bare)} of {len(nodes)} nodes with GPUs have no {PRODUCT}"
        fix = "install GPU feature discovery, or set nodeLabels in the profiles of the platform"
        yield Finding(check, "warning", message, fix)
    products = sorted({_labels(node)[PRODUCT] for node in nodes if PRODUCT in _labels(node)})
    unknown = [product for product in products if product not in PRODUCTS]
    if unknown:
        fix = "name their type with hardware and nodeLabels in a profile of the platform"
        yield Finding(check, "warning", f"{', '.join(unknown)}: not known to node discovery", fix)
    elif products:
        yield Finding(check, "ok", ", ".join(products))


def _labels(each: Object) -> dict[str, str]:
    return dict(each["metadata"].get("labels") or {})


def _is_default(storage_class: Object) -> bool:
    annotations = storage_class["metadata"].get("annotations") or {}
    return annotations.get("storageclass.kubernetes.io/is-default-class") == "true"


def _allocatable_of(node: Object) -> dict[str, str]:
    return dict((node.get("status") or {}).get("allocatable") or {})


def _amount(node: Object, resource: str) -> int:
    try:
        return int(quantity.parse(str(_allocatable_of(node).get(resource, "0"))))
    except (ValueError, KeyError):
        return 0


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _taints(node: Object) -> list[str]:
    return [str(each.get("key")) for each in (node.get("spec") or {}).get("taints") or ()]


def _is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
