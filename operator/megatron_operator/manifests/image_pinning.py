"""Pins the pod templates of a job to an image digest, so that a replaced pod runs what its gang runs.

The job's hash does not include the digest: running pods stay.
"""

from typing import Final

from megatron_contract.environment import CONTAINER_NAME

from megatron_operator.manifests.job_backends import backend_of
from megatron_operator.manifests.metadata import Manifest
from megatron_operator.manifests.pytorchjob import template_patch

_DIGEST: Final = "@sha256:"


def by_digest(image: str, image_id: str) -> str | None:
    """The image by the digest that a kubelet reports as `imageID` of a container that runs it.

    None when the image has a digest already, or when the ID is none of its repository, as for an image that
    was loaded on the node: nobody could pull it by that digest.
    """
    repository, _, digest = image_id.rpartition("://")[2].partition(_DIGEST)
    named = _repository(image)
    if _DIGEST in image or not digest or _canonical(repository) != _canonical(named):
        return None
    return f"{named}{_DIGEST}{digest}"


def trainer_image(job: Manifest) -> str | None:
    """The image of the trainer container in all templates of a job; None when they differ."""
    images = {each["image"] for template in backend_of(job).templates(job) for each in _trainers(template)}
    return images.pop() if len(images) == 1 else None


def merge_patch(job: Manifest, image: str) -> Manifest:
    """JSON merge patch that gives the trainer containers of a PyTorchJob this image.

    It repeats the list of containers.
    """
    changes: list[Manifest] = []
    for template in backend_of(job).templates(job):
        trainers = _trainers(template)
        containers = [
            each | {"image": image} if each in trainers else each for each in template["spec"]["containers"]
        ]
        changes.append({"spec": {"containers": containers}})
    return template_patch(job, changes)


def _trainers(template: Manifest) -> list[Manifest]:
    return [each for each in template["spec"]["containers"] if each["name"] == CONTAINER_NAME]


def _repository(image: str) -> str:
    """`host:5000/name` of `host:5000/name:tag`."""
    path, slash, name = image.partition(_DIGEST)[0].rpartition("/")
    return f"{path}{slash}{name.partition(':')[0]}"


def _canonical(repository: str) -> str:
    """With the host that container runtimes add: `docker.io/library/name` for `name`."""
    host, slash, _ = repository.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost"):
        return repository
    return f"docker.io/{repository}" if slash else f"docker.io/library/{repository}"
