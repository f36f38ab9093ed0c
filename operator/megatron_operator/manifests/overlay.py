"""Applies a profile's `podTemplate` to the pod template of the trainer."""

from typing import Any

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.pod_template import PodTemplateOverlay, Sidecar
from megatron_operator.manifests.metadata import Manifest
from megatron_operator.manifests.security import CONTAINER_SECURITY


def apply(pods: Manifest, overlay: PodTemplateOverlay, *, whole_node: bool) -> None:
    """Add the overlay to a pod template in place; what belongs to the fabric only to whole-node pods.

    Raises InvalidRecipeError where the pod has a volume or mount of that name or path already.
    """
    spec = pods["spec"]
    trainer = spec["containers"][0]
    volumes = [volume.wire() for volume in overlay.volumes]
    mounts = [mount.wire() for mount in overlay.volume_mounts]
    _check_free(spec["volumes"], volumes, "name", "volumes")
    _check_free(trainer["volumeMounts"], mounts, "mountPath", "volumeMounts")
    spec["volumes"] = [*spec["volumes"], *volumes]
    trainer["volumeMounts"] = [*trainer["volumeMounts"], *mounts]
    if overlay.runtime_class_name is not None:
        spec["runtimeClassName"] = overlay.runtime_class_name
    if overlay.scheduler_name is not None:
        spec["schedulerName"] = overlay.scheduler_name
    if whole_node:
        _attach_fabric(pods, overlay)


def add_claim(pods: Manifest, claim: Manifest) -> None:
    """Add a resource claim to the pod, for the trainer's container."""
    resources = pods["spec"]["containers"][0]["resources"]
    pods["spec"].setdefault("resourceClaims", []).append(claim)
    resources.setdefault("claims", []).append({"name": claim["name"]})


def _attach_fabric(pods: Manifest, overlay: PodTemplateOverlay) -> None:
    spec = pods["spec"]
    if overlay.annotations:
        pods["metadata"].setdefault("annotations", {}).update(overlay.annotations)
    for claim in overlay.resource_claims:
        add_claim(pods, claim.wire())
    if overlay.sidecars:
        # As init containers that restart, they start before the trainer and do not keep the pod from ending.
        spec["initContainers"] = [_sidecar(sidecar) for sidecar in overlay.sidecars]
    if overlay.host_network:
        spec["hostNetwork"] = True
        # Workers find the Master by its Service; the node's resolver does not know it.
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"
    if overlay.capabilities:
        trainer = spec["containers"][0]
        capabilities = CONTAINER_SECURITY["capabilities"] | {"add": list(overlay.capabilities)}
        trainer["securityContext"] = CONTAINER_SECURITY | {"capabilities": capabilities}


def _sidecar(sidecar: Sidecar) -> Manifest:
    container: Manifest = {"name": sidecar.name, "image": sidecar.image, "restartPolicy": "Always"}
    for key in ("command", "args", "resources"):
        value = getattr(sidecar, key)
        if value is not None:
            container[key] = value if isinstance(value, list) else value.wire()
    if sidecar.env:
        container["env"] = [{"name": name, "value": value} for name, value in sidecar.env.items()]
    if sidecar.ports:
        container["ports"] = [{"containerPort": port} for port in sidecar.ports]
    if sidecar.volume_mounts:
        container["volumeMounts"] = [mount.wire() for mount in sidecar.volume_mounts]
    return container | {"securityContext": _security(sidecar)}


def _security(sidecar: Sidecar) -> Manifest:
    context, given = dict(CONTAINER_SECURITY), sidecar.security_context
    if given is None:
        return context
    if given.capabilities is not None:
        context["capabilities"] = {"drop": ["ALL"], "add": given.capabilities.add}
    if given.read_only_root_filesystem is not None:
        context["readOnlyRootFilesystem"] = given.read_only_root_filesystem
    if given.run_as_user is not None:
        context |= {"runAsUser": given.run_as_user, "runAsNonRoot": given.run_as_user != 0}
    if given.privileged:
        # The API server refuses allowPrivilegeEscalation: false for these.
        context |= {"privileged": True, "allowPrivilegeEscalation": True}
    return context


def _check_free(existing: list[dict[str, Any]], added: list[Any], key: str, field: str) -> None:
    taken = {each[key] for each in existing}
    errors = [
        FieldError(
            f"platform.podTemplate.{field}[{index}].{key}",
            f"{each[key]!r} is taken in this pod",
            "use another",
        )
        for index, each in enumerate(added)
        if each[key] in taken
    ]
    if errors:
        raise InvalidRecipeError(errors)
