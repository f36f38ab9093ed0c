"""Validation of the platform file: its schema, and what `podTemplate` and `env` leave to the operator."""

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from megatron_operator.api import reserved_names
from megatron_operator.api.base import ApiModel
from megatron_operator.api.errors import FieldError, InvalidRecipeError, field_path, shown
from megatron_operator.api.hardware import without_cuda
from megatron_operator.api.platform import (
    KUBERNETES,
    VOLCANO,
    AcceleratorProfile,
    CpuJobs,
    Maintenance,
    PlatformConfig,
    Toleration,
)
from megatron_operator.api.pod_template import OverlayMount, PodTemplateOverlay, Sidecar
from megatron_operator.api.text_checks import (
    IMAGE,
    NAME,
    NODE_LABEL,
    NODE_LABEL_VALUE,
    SHORT_NAME,
    Form,
    platform_text_errors,
)
from megatron_operator.api.topology_validation import topology_errors
from megatron_operator.api.validation import parse

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME_FIX: Final = "use at most 63 lower-case letters, digits and -"
_SOURCES: Final = ("hostPath", "emptyDir", "configMap", "csi")
_CLAIM_SOURCES: Final = ("resourceClaimName", "resourceClaimTemplateName")


def parse_platform(content: Any, at: str) -> PlatformConfig:
    """The platform file's content as a model; `at` is its path in messages.

    Raises InvalidRecipeError with every error.
    """
    platform = parse(PlatformConfig, content, at)
    errors = platform_text_errors(content, at)
    errors += [
        error
        for name, profile in platform.accelerators.items()
        for at_profile in [field_path(f"{at}.accelerators", name)]
        for error in (
            *_hardware_errors(name, profile, at_profile),
            *topology_errors(profile, at_profile),
            *_profile_errors(profile, at_profile),
        )
    ]
    errors += _gang_scheduling_errors(platform, at)
    errors += _priority_errors(platform, at)
    errors += _hub_errors(platform, at)
    if platform.cpu_jobs is not None:
        errors += _cpu_job_errors(platform.cpu_jobs, f"{at}.cpuJobs")
    errors += _maintenance_errors(platform.maintenance, f"{at}.maintenance")
    if platform.bad_nodes.move_runs and not (platform.bad_nodes.conditions or platform.bad_nodes.taints):
        message = "true has no effect while badNodes.conditions and badNodes.taints are empty"
        errors.append(FieldError(f"{at}.badNodes.moveRuns", message, "name signs in one, or leave it out"))
    if platform.bad_nodes.uncordon_by_check and not platform.bad_nodes.cordon:
        field, message = f"{at}.badNodes.uncordonByCheck", "true has no effect while badNodes.cordon is false"
        errors.append(FieldError(field, message, "set badNodes.cordon to true, or leave it out"))
    if errors:
        raise InvalidRecipeError(errors)
    return platform


def _maintenance_errors(maintenance: Maintenance, at: str) -> Iterator[FieldError]:
    for index, key in enumerate(maintenance.start_times):
        yield from _form_errors(NODE_LABEL, key, f"{at}.startTimes[{index}]")
    if "lead_time" in maintenance.model_fields_set and not maintenance.start_times:
        message = f"{maintenance.lead_time} has no effect without startTimes"
        yield FieldError(f"{at}.leadTime", message, "set startTimes, or leave it out")


def _gang_scheduling_errors(platform: PlatformConfig, at: str) -> Iterator[FieldError]:
    gangs, field = platform.gang_scheduling, f"{at}.gangScheduling"
    if gangs is None:
        return
    if not NAME.pattern.fullmatch(gangs.scheduler):
        yield FieldError(f"{field}.scheduler", f"invalid name {shown(gangs.scheduler)}", NAME.fix)
    if platform.job_backend != "pytorchjob" and gangs.scheduler != KUBERNETES:
        yield FieldError(
            field, f"needs PodGroups, which nobody creates for jobBackend {platform.job_backend}",
            f"set scheduler to {KUBERNETES} or let Kueue start gangs, or set jobBackend to pytorchjob",
        )  # fmt: skip
    if platform.queue is not None:
        yield FieldError(
            f"{at}.queue", f"{shown(platform.queue)} is a queue of Kueue, and gangScheduling is set too",
            "let Kueue or gangScheduling start gangs: leave one of the two out",
        )  # fmt: skip
    if platform.topology_aware_queues:
        yield FieldError(
            f"{at}.topologyAwareQueues", "true is for queues of Kueue, and gangScheduling is set too",
            "leave one of the two out",
        )  # fmt: skip
    if (name := platform.workload_priority_class_name) is not None:
        yield FieldError(
            f"{at}.workloadPriorityClassName",
            f"{shown(name)} is a priority in a queue of Kueue, and gangScheduling is set too",
            "leave one of the two out",
        )
    if gangs.scheduler in (VOLCANO, KUBERNETES) and gangs.schedule_timeout_seconds is not None:
        yield FieldError(
            f"{field}.scheduleTimeoutSeconds",
            f"{gangs.schedule_timeout_seconds} has no effect on {gangs.scheduler}",
            "leave it out",
        )
    if gangs.scheduler != VOLCANO and gangs.queue is not None:
        yield FieldError(
            f"{field}.queue",
            f"{shown(gangs.queue)}: {shown(gangs.scheduler)} has no queues, only {VOLCANO} has",
            "leave it out",
        )  # fmt: skip
    for name, profile in platform.accelerators.items() if gangs.scheduler != KUBERNETES else ():
        other = profile.pod_template.scheduler_name
        if other not in (None, gangs.scheduler):
            yield FieldError(
                f"{field_path(f'{at}.accelerators', name)}.podTemplate.schedulerName",
                f"{shown(other)} would not see the PodGroups of gangScheduling.scheduler {gangs.scheduler}",
                "leave it out",
            )


def _hub_errors(platform: PlatformConfig, at: str) -> Iterator[FieldError]:
    token = platform.hub.secret_key_ref
    if token is not None and not NAME.pattern.fullmatch(token.name):
        yield FieldError(f"{at}.hub.secretKeyRef.name", f"invalid name {shown(token.name)}", NAME.fix)


def _cpu_job_errors(jobs: CpuJobs, at: str) -> Iterator[FieldError]:
    """Errors of what the API server would refuse in a pod."""
    for key, value in jobs.node_selector.items():
        field = field_path(f"{at}.nodeSelector", key)
        yield from _form_errors(NODE_LABEL, key, field)
        yield from _form_errors(NODE_LABEL_VALUE, value, field)
    for index, toleration in enumerate(jobs.tolerations):
        yield from _toleration_errors(toleration, f"{at}.tolerations[{index}]")


def _form_errors(form: Form, text: str, field: str) -> Iterator[FieldError]:
    if error := form.error(text, field):
        yield error


def _toleration_errors(toleration: Toleration, at: str) -> Iterator[FieldError]:
    exists, seconds = toleration.operator == "Exists", toleration.toleration_seconds
    if toleration.key:
        yield from _form_errors(NODE_LABEL, toleration.key, f"{at}.key")
    elif not exists:
        fix = "set the key of a taint, or operator to Exists for all taints"
        yield FieldError(f"{at}.key", "is not set", fix)
    if toleration.value and exists:
        message = f"{shown(toleration.value)} has no effect with operator Exists"
        yield FieldError(f"{at}.value", message, "leave it out, or set operator to Equal")
    elif toleration.value:
        yield from _form_errors(NODE_LABEL_VALUE, toleration.value, f"{at}.value")
    if seconds is not None and toleration.effect != "NoExecute":
        message = f"{seconds} is for effect NoExecute alone"
        yield FieldError(f"{at}.tolerationSeconds", message, "leave it out, or set effect to NoExecute")


def _priority_errors(platform: PlatformConfig, at: str) -> Iterator[FieldError]:
    in_queue = platform.workload_priority_class_name
    if in_queue and not (len(in_queue) <= SHORT_NAME.longest and SHORT_NAME.pattern.fullmatch(in_queue)):
        yield FieldError(f"{at}.workloadPriorityClassName", f"invalid name {shown(in_queue)}", SHORT_NAME.fix)
    name, field = platform.recovery_priority_class_name, f"{at}.recoveryPriorityClassName"
    if name is None:
        return
    if not NAME.pattern.fullmatch(name):
        yield FieldError(field, f"invalid name {shown(name)}", NAME.fix)
    if platform.gang_scheduling is not None and platform.gang_scheduling.scheduler == VOLCANO:
        message = f"{shown(name)} is of pods, and Volcano takes runs by the priority of their PodGroup"
        yield FieldError(field, message, "leave it out")


def _hardware_errors(name: str, profile: AcceleratorProfile, at: str) -> Iterator[FieldError]:
    named = profile.hardware or name
    if profile.platform == "gpu" and (reason := without_cuda(named)):
        field = f"{at}.hardware" if profile.hardware else at
        yield FieldError(field, f"{shown(named)} {reason}", "leave the profile out")
    if profile.platform == "cpu" and profile.data_sheet is not None:
        message = "has no effect with platform cpu, which is planned without memory and speed"
        yield FieldError(f"{at}.dataSheet", message, "leave it out, or set platform to gpu")


def _profile_errors(profile: AcceleratorProfile, at: str) -> Iterator[FieldError]:
    for name in sorted(reserved_names.ENVIRONMENT & profile.env.keys()):
        yield FieldError(
            field_path(f"{at}.env", name), f"{shown(profile.env[name])} would be overwritten by the operator",
            "leave it out",
        )  # fmt: skip
    for index, toleration in enumerate(profile.tolerations):
        yield from _toleration_errors(toleration, f"{at}.tolerations[{index}]")
    overlay, at = profile.pod_template, f"{at}.podTemplate"
    yield from _annotation_errors(overlay, at)
    yield from _volume_errors(overlay, at)
    volumes = {volume.name for volume in overlay.volumes}
    yield from _mount_errors(overlay.volume_mounts, volumes, f"{at}.volumeMounts", reserved_names.MOUNT_PATHS)
    yield from _device_errors(profile, at)
    yield from _claim_errors(overlay, at)
    yield from _sidecar_errors(overlay.sidecars, volumes, f"{at}.sidecars")
    classes = {"runtimeClassName": overlay.runtime_class_name, "schedulerName": overlay.scheduler_name}
    for key, value in classes.items():
        if value is not None and not NAME.pattern.fullmatch(value):
            yield FieldError(f"{at}.{key}", f"invalid name {shown(value)}", NAME.fix)


def _annotation_errors(overlay: PodTemplateOverlay, at: str) -> Iterator[FieldError]:
    for key in overlay.annotations:
        field = field_path(f"{at}.annotations", key)
        if not NODE_LABEL.pattern.fullmatch(key) or len(key) > NODE_LABEL.longest:
            yield FieldError(
                field, f"invalid annotation key {shown(key)}", "use for example example.com/network"
            )
        elif key.startswith(reserved_names.ANNOTATION_PREFIXES):
            yield FieldError(field, f"{shown(key)} is set by the operator or by Kueue", "leave it out")


def _volume_errors(overlay: PodTemplateOverlay, at: str) -> Iterator[FieldError]:
    names = [volume.name for volume in overlay.volumes]
    yield from _name_errors(names, f"{at}.volumes", reserved_names.VOLUMES, "volume")
    for index, volume in enumerate(overlay.volumes):
        field = f"{at}.volumes[{index}]"
        yield from _source_errors(volume, _SOURCES, field)
        path = volume.host_path.path if volume.host_path else None
        if path is not None and not _is_absolute(path):
            yield FieldError(
                f"{field}.hostPath.path", f"invalid path {shown(path)}", "use an absolute path without .."
            )


def _mount_errors(
    mounts: Sequence[OverlayMount], volumes: set[str], at: str, reserved: Sequence[str]
) -> Iterator[FieldError]:
    seen: set[PurePosixPath] = set()
    for index, mount in enumerate(mounts):
        field, path = f"{at}[{index}]", PurePosixPath(mount.mount_path)
        if mount.name not in volumes:
            known = ", ".join(sorted(volumes)) or "none"
            yield FieldError(
                f"{field}.name", f"no volume {shown(mount.name)} in podTemplate.volumes (there: {known})",
                "add it there, or correct the name",
            )  # fmt: skip
        if not _is_absolute(mount.mount_path) or ":" in mount.mount_path:
            yield FieldError(
                f"{field}.mountPath",
                f"invalid path {shown(mount.mount_path)}",
                "use an absolute path without .. or :",
            )
            continue
        if taken := next((each for each in reserved if _overlap(path, PurePosixPath(each))), None):
            yield FieldError(
                f"{field}.mountPath", f"{shown(mount.mount_path)} overlaps {taken} of the operator",
                "mount it elsewhere",
            )  # fmt: skip
        elif path in seen:
            yield FieldError(
                f"{field}.mountPath", f"{shown(mount.mount_path)} is used twice", "use another path"
            )
        if mount.sub_path is not None and (_is_absolute(mount.sub_path) or ".." in mount.sub_path.split("/")):
            yield FieldError(
                f"{field}.subPath", f"invalid path {shown(mount.sub_path)}", "use a relative path without .."
            )
        seen.add(path)


def _device_errors(profile: AcceleratorProfile, at: str) -> Iterator[FieldError]:
    for name in profile.pod_template.resources:
        field = field_path(f"{at}.resources", name)
        if name == profile.resource_name:
            yield FieldError(field, f"{shown(name)} is the accelerator itself", "set perNode of the profile")
        elif name in profile.extra_resources:
            yield FieldError(field, f"{shown(name)} is in extraResources too", "set it in one place")
        elif "/" not in name and not name.startswith("hugepages-"):
            yield FieldError(
                field, f"{shown(name)} is neither a device (domain/name) nor huge pages (hugepages-2Mi)",
                "set cpu and memory below resources of the profile",
            )  # fmt: skip


def _claim_errors(overlay: PodTemplateOverlay, at: str) -> Iterator[FieldError]:
    names = [claim.name for claim in overlay.resource_claims]
    yield from _name_errors(names, f"{at}.resourceClaims", reserved_names.CLAIMS, "claim")
    for index, claim in enumerate(overlay.resource_claims):
        yield from _source_errors(claim, _CLAIM_SOURCES, f"{at}.resourceClaims[{index}]")


def _sidecar_errors(sidecars: Sequence[Sidecar], volumes: set[str], at: str) -> Iterator[FieldError]:
    names = [sidecar.name for sidecar in sidecars]
    yield from _name_errors(names, at, reserved_names.CONTAINERS, "container")
    taken = dict(reserved_names.PORTS)
    for index, sidecar in enumerate(sidecars):
        field = f"{at}[{index}]"
        if not IMAGE.pattern.fullmatch(sidecar.image):
            yield FieldError(f"{field}.image", f"invalid image {shown(sidecar.image)}", IMAGE.fix)
        for port in sidecar.ports:
            if port in taken:
                yield FieldError(f"{field}.ports", f"{port} is used by {taken[port]}", "use another port")
            taken[port] = f"sidecar {sidecar.name}"
        yield from _mount_errors(sidecar.volume_mounts, volumes, f"{field}.volumeMounts", ())


def _name_errors(names: Sequence[str], at: str, reserved: frozenset[str], kind: str) -> Iterator[FieldError]:
    for index, name in enumerate(names):
        field = f"{at}[{index}].name"
        if not _DNS_LABEL.fullmatch(name):
            yield FieldError(field, f"invalid {kind} name {shown(name)}", _NAME_FIX)
        elif name in reserved:
            yield FieldError(field, f"{shown(name)} is a {kind} of the operator", "use another name")
        elif name in names[:index]:
            yield FieldError(field, f"{shown(name)} is used twice", "use another name")


def _source_errors(owner: ApiModel, sources: Sequence[str], at: str) -> Iterator[FieldError]:
    found = [source for source in sources if source in owner.wire()]
    if len(found) != 1:
        message = f"has {len(found)} sources ({', '.join(found)})" if found else "has no source"
        yield FieldError(at, message, f"set exactly one of {', '.join(sources)}")


def _is_absolute(path: str) -> bool:
    return path.startswith("/") and ".." not in path.split("/")


def _overlap(path: PurePosixPath, other: PurePosixPath) -> bool:
    """Whether one path is the other, or hides it, or is inside of it."""
    return path == other or path in other.parents or other in path.parents


def beyond_baseline(profile: AcceleratorProfile) -> list[str]:
    """What the profile's pods have that the Pod Security levels `baseline` and `restricted` refuse."""
    overlay = profile.pod_template
    found = [f"capability {name}" for name in overlay.capabilities]
    if overlay.host_network:
        found.append("hostNetwork")
    found += [f"hostPath volume {volume.name}" for volume in overlay.volumes if volume.host_path]
    for sidecar in overlay.sidecars:
        security = sidecar.security_context
        if security is None:
            continue
        if security.privileged:
            found.append(f"privileged sidecar {sidecar.name}")
        elif security.capabilities and set(security.capabilities.add) - _BASELINE:
            found.append(f"capabilities of sidecar {sidecar.name}")
    return found


_BASELINE: Final = frozenset(
    {
        "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE",
        "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
    }
)  # fmt: skip
"""Capabilities that the level `baseline` lets a container add."""
