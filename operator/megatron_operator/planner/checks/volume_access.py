"""Whether the access modes of volumes suit the pods that mount them."""

from collections.abc import Iterator

from megatron_operator.api.errors import FieldError
from megatron_operator.catalog.resolved import ResolvedRecipe


def volume_access_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Errors of `accessMode`: one of an existing claim, and ReadWriteOnce for pods of several nodes.

    Pods that together need no more accelerators than a node has may share one; those on CPUs always may.
    """
    profile, pods = resolved.profile, -(-resolved.accelerator_count // resolved.per_node)
    several_nodes = profile.platform == "gpu" and resolved.accelerator_count > profile.per_node
    for section, volume in (("checkpoint", resolved.checkpoint.volume), ("data", resolved.data.volume)):
        if volume is None or volume.access_mode is None:
            continue
        field = f"spec.{section}.volume.accessMode"
        if volume.claim_name is not None:
            fix = "leave it out: an existing claim keeps its access mode"
            yield FieldError(field, f"{volume.access_mode} has no effect with claimName", fix)
        elif volume.access_mode == "ReadWriteOnce" and several_nodes:
            message = f"ReadWriteOnce is for the pods of one node, and the run has {pods} pods on several"
            yield FieldError(field, message, "leave it out, for ReadWriteMany")
