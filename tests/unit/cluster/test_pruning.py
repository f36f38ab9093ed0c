"""Old images are deleted, images in use are kept."""

from pathlib import Path

from localcluster.images import OPERATOR, TRAINER, PulledImages, operator_of
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


def test_an_image_of_a_release_is_pulled_beside_that_of_the_checkout(tmp_path: Path) -> None:
    release = operator_of(tmp_path / "source", "0.2.0")
    pulled = PulledImages(tmp_path / "pulled.json")
    pulled.put({OPERATOR: "1"})
    pulled.put({release: "2"})
    assert (pulled.get(OPERATOR), pulled.get(release)) == ("1", "2")
    assert release.reference == "registry.local/megatron-operator:0.2.0"


def test_a_new_cluster_has_pulled_nothing(tmp_path: Path) -> None:
    assert PulledImages(tmp_path / "pulled.json").get(OPERATOR) is None
