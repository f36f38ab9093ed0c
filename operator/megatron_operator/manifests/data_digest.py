"""Digest of what a Job prepares or checks, by which a run's data are prepared or checked once."""

from megatron_operator.api.labels import ANNOTATION_HASH
from megatron_operator.manifests.metadata import Manifest, digest
from megatron_operator.manifests.sample_index import without_place, without_sample_length


def data_digest(job: Manifest) -> str:
    """Digest of the data that a Job prepares or checks.

    What changes none is not part of it: image, queue, requests, and where the index of the samples is kept.
    """
    pod = job["spec"]["template"]["spec"]
    return _digest(pod, pod["containers"][0]["args"])


def former_digests(job: Manifest) -> tuple[str, ...]:
    """What earlier releases have in the status of a run whose data this Job has prepared or checked."""
    pod = job["spec"]["template"]["spec"]
    claims = [volume.get("persistentVolumeClaim") for volume in pod["volumes"]]
    annotations = job["metadata"].get("annotations") or {}
    args = pod["containers"][0]["args"]
    former = without_sample_length(args)
    found = str(annotations.get(ANNOTATION_HASH)), digest([former, claims])
    return found if former == args else (*found, _digest(pod, former))


def _digest(pod: Manifest, arguments: list[str]) -> str:
    claims = [v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if v["name"] == "data"]
    return digest([without_place(arguments), claims])
