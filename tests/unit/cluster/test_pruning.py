"""Old images are deleted, images in use are kept."""

from pathlib import Path

from localcluster.images import OPERATOR, TRAINER, PulledImages
from localcluster.node import untagged

LISTING = """REF TYPE DIGEST SIZE PLATFORMS LABELS
registry.local/megatron-operator:dev application/vnd.oci sha256:new 1 MiB linux/amd64 a=b
registry.local/megatron-operator@sha256:new application/vnd.oci sha256:new 1 MiB linux/amd64 a=b
registry.local/megatron-operator@sha256:old application/vnd.oci sha256:old 1 MiB linux/amd64 a=b
sha256:idofnew application/vnd.oci sha256:new 1 MiB linux/amd64 a=b
sha256:idofold application/vnd.oci sha256:old 1 MiB linux/amd64 a=b
"""


def test_images_without_a_tag_are_deleted() -> None:
    assert untagged(LISTING) == ["registry.local/megatron-operator@sha256:old", "sha256:idofold"]


def test_a_node_without_images_has_nothing_to_delete() -> None:
    assert untagged("REF TYPE DIGEST SIZE PLATFORMS LABELS\n") == []


def test_pulled_ids_are_stored_by_image(tmp_path: Path) -> None:
    pulled = PulledImages(tmp_path / "pulled.json")
    pulled.put({OPERATOR: "1", TRAINER: "2"})
    pulled.put({OPERATOR: "3"})
    assert (pulled.get(OPERATOR), pulled.get(TRAINER)) == ("3", "2")


def test_a_new_cluster_has_pulled_nothing(tmp_path: Path) -> None:
    assert PulledImages(tmp_path / "pulled.json").get(OPERATOR) is None
