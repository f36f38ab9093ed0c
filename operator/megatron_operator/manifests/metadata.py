"""Names, labels, owner references and the hash of what the operator makes for a recipe."""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.labels import (
    ANNOTATION_HASH,
    API_VERSION,
    FIELD_MANAGER,
    KIND,
    LABEL_MANAGED_BY,
    LABEL_RECIPE,
    LABEL_ROLE,
)

Manifest = dict[str, Any]

LONGEST_OBJECT_NAME = 63 - len("-worker-9999")
"""Pods get a Service of their own name, and a Service's name is a DNS label of 63 characters at most."""
LONGEST_RECIPE_NAME = 63
"""A label's value: pods are found by the recipe's name."""

ROLE_TRAINER = "trainer"
ROLE_PREPARE = "prepare"

_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def digest(value: object, length: int = 16) -> str:
    """A short hash of a plain value; equal values give equal hashes in every process."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def object_name(recipe: str) -> str:
    """Name of the job made for a recipe: the recipe's own, where pods and Services can bear it.

    A PyTorchJob needs a DNS-1035 label; `llama3.1-8b` becomes `llama3-1-8b-` with five digits of its hash.
    """
    if len(recipe) <= LONGEST_OBJECT_NAME and _DNS_1035.fullmatch(recipe):
        return recipe
    plain = re.sub(r"[^-a-z0-9]", "-", recipe.lower())
    if not plain[:1].isalpha():
        plain = f"r-{plain}"
    return f"{plain[: LONGEST_OBJECT_NAME - 6].rstrip('-')}-{digest(recipe, 5)}"


@dataclass(frozen=True, slots=True)
class Owner:
    """The recipe that objects are made for."""

    name: str
    namespace: str
    uid: str

    def __post_init__(self) -> None:
        if len(self.name) > LONGEST_RECIPE_NAME:
            raise InvalidRecipeError(
                [
                    FieldError(
                        "metadata.name",
                        f"has {len(self.name)} characters, and labels of pods hold {LONGEST_RECIPE_NAME}",
                        f"use a name of at most {LONGEST_RECIPE_NAME} characters",
                    )
                ]
            )

    @property
    def object_name(self) -> str:
        return object_name(self.name)

    def labels(self, role: str | None = None) -> dict[str, str]:
        labels = {LABEL_MANAGED_BY: FIELD_MANAGER, LABEL_RECIPE: self.name}
        return labels | {LABEL_ROLE: role} if role else labels

    def metadata(self, name: str, *, owned: bool = True) -> Manifest:
        """Metadata of an object of this recipe; an owned one goes when the recipe goes."""
        metadata: Manifest = {"name": name, "namespace": self.namespace, "labels": self.labels()}
        if owned:
            metadata["ownerReferences"] = [
                {
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "name": self.name,
                    "uid": self.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ]
        return metadata


def with_hash(manifest: Manifest, value: str | None = None) -> Manifest:
    """The manifest with an annotation that tells whether an object in the cluster is still this one."""
    metadata = manifest["metadata"]
    annotations = metadata.get("annotations", {}) | {ANNOTATION_HASH: value or digest(manifest)}
    return manifest | {"metadata": metadata | {"annotations": annotations}}
