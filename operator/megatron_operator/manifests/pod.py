"""Pod template of the trainer; complies with the Pod Security level `restricted`."""

from fractions import Fraction

from megatron_contract.environment import CONTAINER_NAME, PROGRESS_PORT, PROGRESS_PORT_NAME

from megatron_operator.api import quantity
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests import compute_domain, gang_token, overlay
from megatron_operator.manifests.affinity import affinity, tolerations
from megatron_operator.manifests.env import environment_objects
from megatron_operator.manifests.grace import grace_seconds
from megatron_operator.manifests.metadata import ROLE_TRAINER, Manifest, Owner
from megatron_operator.manifests.security import CONTAINER_SECURITY, POD_SECURITY
from megatron_operator.manifests.storage import Storage
from megatron_operator.planner.estimate.offloading import offloaded_bytes


def image(resolved: ResolvedRecipe) -> str:
    """The trainer image. Raises InvalidRecipeError if neither recipe nor platform sets one."""
    if resolved.image is None:
        raise InvalidRecipeError(image_errors(resolved))
    return resolved.image


def image_errors(resolved: ResolvedRecipe) -> list[FieldError]:
    """The error of a recipe without a trainer image."""
    if resolved.image is not None:
        return []
    message = "is set neither by the recipe nor by the platform"
    fix = f"set spec.image, or image of the platform or its profile {resolved.accelerator_type}"
    if resolved.engine == "bridge":
        message = "the recipe needs a trainer image with Megatron-Bridge, and platform.bridgeImage is not set"
        fix = "have platform.bridgeImage set, or set spec.image to such an image"
    return [FieldError("spec.image", message, fix)]


def literal(argument: str) -> str:
    """An argument that the kubelet passes on unchanged: `$(NAME)` would become a variable's value."""
    return argument.replace("$(", "$$(")


def identity(resolved: ResolvedRecipe) -> Manifest:
    """The pod's service account and its secrets for pulling the image. No pod gets a token of the account."""
    spec: Manifest = {}
    if resolved.service_account_name is not None:
        spec["serviceAccountName"] = resolved.service_account_name
    if resolved.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in resolved.image_pull_secrets]
    return spec


def whole_node(resolved: ResolvedRecipe, plan: Plan) -> bool:
    """Whether a pod uses all accelerators of its node."""
    return plan.per_node >= resolved.profile.per_node


def shm_size(resolved: ResolvedRecipe, plan: Plan) -> str:
    """Size of /dev/shm of one pod: its share of the profile's, as a quantity."""
    return quantity.memory(quantity.parse(resolved.profile.shm_size) * _share(resolved, plan))


def resources(resolved: ResolvedRecipe, plan: Plan) -> Manifest:
    """The container's `resources`: CPU and memory in proportion to its accelerators, /dev/shm as memory.

    Optimizer states that are offloaded to the host add to its memory.
    Requests equal limits, so that the pod is among the last to be evicted (QoS class Guaranteed, if all its
    other containers comply: docs/platform.md).
    """
    profile, share = resolved.profile, _share(resolved, plan)
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if profile.resources.cpu is not None:
        cores = quantity.parse(profile.resources.cpu) * share
        requests["cpu"] = quantity.cores(cores)
        if profile.platform == "gpu" and cores >= 1:
            # The kubelet's static CPU manager gives cores of their own to whole, equal amounts only.
            requests["cpu"] = limits["cpu"] = quantity.cores(Fraction(int(cores)))
    beside = quantity.parse(shm_size(resolved, plan)) + offloaded_bytes(resolved, plan)
    if profile.resources.memory is not None:
        memory = quantity.memory(quantity.parse(profile.resources.memory) * share + beside)
        requests["memory"] = limits["memory"] = memory
    else:
        requests["memory"] = quantity.memory(beside)
    if profile.resource_name is not None:
        limits[profile.resource_name] = str(plan.per_node)
    if whole_node(resolved, plan):
        limits |= profile.extra_resources | profile.pod_template.resources
    extended = {name: amount for name, amount in limits.items() if name not in ("cpu", "memory")}
    result: Manifest = {"requests": requests | extended}
    return result | {"limits": limits} if limits else result


def template(
    owner: Owner,
    resolved: ResolvedRecipe,
    plan: Plan,
    storage: Storage,
    arguments: list[str],
    environment: list[Manifest],
) -> Manifest:
    """Template of one pod of the gang. The job sets its restart policy.

    Raises InvalidRecipeError if neither recipe nor platform sets an image.
    """
    spec: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY,
        "terminationGracePeriodSeconds": grace_seconds(resolved, plan),
        "containers": [
            {
                "name": CONTAINER_NAME,
                "image": image(resolved),
                "command": ["megatron-train"],
                "args": [literal(argument) for argument in arguments],
                "env": environment,
                "ports": [{"name": PROGRESS_PORT_NAME, "containerPort": PROGRESS_PORT}],
                "resources": resources(resolved, plan),
                "securityContext": CONTAINER_SECURITY,
                "terminationMessagePolicy": _message_policy(resolved),
                "volumeMounts": [*storage.mounts(), gang_token.mount()],
            }
        ],
        "volumes": [*storage.volumes(shm_size(resolved, plan)), gang_token.volume(owner)],
        "tolerations": tolerations(resolved),
    }
    if objects := environment_objects(resolved):
        spec["containers"][0]["envFrom"] = objects
    placement = affinity(owner, resolved, plan)
    if placement:
        spec["affinity"] = placement
    if resolved.scheduling.priority_class_name is not None:
        spec["priorityClassName"] = resolved.scheduling.priority_class_name
    spec |= identity(resolved)
    pods: Manifest = {"metadata": {"labels": owner.labels(ROLE_TRAINER)}, "spec": spec}
    overlay.apply(pods, resolved.profile.pod_template, whole_node=whole_node(resolved, plan))
    if compute_domain.needed(resolved, plan):
        compute_domain.claim_channel(pods, owner)
    return pods


def _message_policy(resolved: ResolvedRecipe) -> str:
    """Without a message of the trainer, the end of its log shows why it ended.

    Not where the log may have values of Secrets: the message enters the status.
    """
    has_secrets = any(source.secret_key_ref for source in resolved.env_value_from.values()) or any(
        source.secret_ref for source in resolved.env_from
    )
    return "File" if has_secrets else "FallbackToLogsOnError"


def _share(resolved: ResolvedRecipe, plan: Plan) -> Fraction:
    return min(Fraction(plan.per_node, resolved.profile.per_node), Fraction(1))
