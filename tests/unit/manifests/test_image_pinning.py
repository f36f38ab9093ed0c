"""Images by digest, and the patch that gives them to a job."""

import pytest
from megatron_operator.manifests.image_pinning import by_digest, merge_patch, trainer_image

DIGEST = "@sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("image", "image_id", "expected"),
    [
        ("host:5000/team/trainer:1", f"host:5000/team/trainer{DIGEST}", f"host:5000/team/trainer{DIGEST}"),
        ("host:5000/trainer", f"host:5000/trainer{DIGEST}", f"host:5000/trainer{DIGEST}"),
        ("trainer:1", f"docker.io/library/trainer{DIGEST}", f"trainer{DIGEST}"),
        ("team/trainer:1", f"docker.io/team/trainer{DIGEST}", f"team/trainer{DIGEST}"),
        ("trainer:1", f"docker-pullable://trainer{DIGEST}", f"trainer{DIGEST}"),
        pytest.param("trainer:1", f"docker.io/library/import-1{DIGEST}", None, id="loaded on the node"),
        pytest.param("trainer:1", "sha256:" + "a" * 64, None, id="an ID without a repository"),
        pytest.param(f"trainer{DIGEST}", f"docker.io/library/trainer{DIGEST}", None, id="pinned already"),
        pytest.param("trainer:1", "", None, id="not reported yet"),
    ],
)
def test_an_image_is_pinned_to_a_digest_of_its_own_repository(
    image: str, image_id: str, expected: str | None
) -> None:
    assert by_digest(image, image_id) == expected


def test_the_patch_changes_only_the_image_of_the_trainer() -> None:
    sidecar = {"name": "proxy", "image": "trainer:1"}
    trainer = {"name": "pytorch", "image": "trainer:1", "args": ["--bf16"]}
    template = {"spec": {"containers": [trainer, sidecar]}}
    job = {"spec": {"pytorchReplicaSpecs": {"Master": {"template": template}}}}
    assert trainer_image(job) == "trainer:1"
    patch = merge_patch(job, f"trainer{DIGEST}")
    (replica,) = patch["spec"]["pytorchReplicaSpecs"].values()
    pinned = trainer | {"image": f"trainer{DIGEST}"}
    assert replica == {"template": {"spec": {"containers": [pinned, sidecar]}}}
