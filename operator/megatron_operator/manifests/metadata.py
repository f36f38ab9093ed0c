"""Names, labels, owner references and hashes of the objects of a recipe."""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.labels import (
    ANNOTATION_HASH,
    FIELD_MANAGER,
    KIND,
    LABEL_MANAGED_BY,
    LABEL_RECIPE,
    LABEL_ROLE,
    STORED_API_VERSION,
)

Manifest = dict[str, Any]

LONGEST_OBJECT_NAME = 63 - len("-worker-9999")
"""Each pod has a Service of its name, and the name of a Service has at most 63 characters."""
LONGEST_RECIPE_NAME = 63
"""The recipe's name is the value of a label, which has at most 63 characters."""

ROLE_TRAINER = "trainer"
ROLE_PREPARE = "prepare"
ROLE_CHECK = "check"
ROLE_IMPORT = "import"
ROLE_EXPORT = "export"
ROLE_EXPORT_BEST = "export-best"

_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def digest(value: object, length: int = 16) -> str:
    """SHA-256 of a JSON-compatible value, shortened to `length` hex digits; stable across processes."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def copied[T](value: T) -> T:
    """A deep copy of a JSON value, several times faster than `copy.deepcopy`."""
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}  # type: ignore[return-value]
    if isinstance(value, list):
        return [copied(each) for each in value]  # type: ignore[return-value]
    return value


def object_name(recipe: str) -> str:
    """Name of a recipe's job: the recipe's own if pods and Services can have it.

    A PyTorchJob needs a DNS-1035 label: `llama3.1-8b` becomes `llama3-1-8b-` and five digits of its hash.
    """
    if len(recipe) <= LONGEST_OBJECT_NAME and _DNS_1035.fullmatch(recipe):
        return recipe
    plain = re.sub(r"[^-a-z0-9]", "-", recipe.lower())
    if not plain[:1].isalpha():
        plain = f"r-{plain}"
    return f"{plain[: LONGEST_OBJECT_NAME - 6].rstrip('-')}-{digest(recipe, 5)}"


@dataclass(frozen=True, slots=True)
class Owner:
    """The recipe that owns objects. Raises InvalidRecipeError if its name is too long for a label."""

    name: str
    namespace: str
    uid: str

    def __post_init__(self) -> None:
        if len(self.name) > LONGEST_RECIPE_NAME:
            message = f"has {len(self.name)} characters, but a label value has at most {LONGEST_RECIPE_NAME}"
            fix = f"use a name of at most {LONGEST_RECIPE_NAME} characters"
            raise InvalidRecipeError([FieldError("metadata.name", message, fix)])

    @property
    def object_name(self) -> str:
        """Name of the job, and prefix of the names of the other objects."""
        return object_name(self.name)

    def labels(self, role: str | None = None) -> dict[str, str]:
        """Labels of an object; pods have a role too."""
        labels = {LABEL_MANAGED_BY: FIELD_MANAGER, LABEL_RECIPE: self.name}
        return labels | {LABEL_ROLE: role} if role else labels

    def metadata(self, name: str, *, owned: bool = True) -> Manifest:
        """Metadata of an object; an owned object is garbage-collected with the recipe.

        Without a UID, which only the cluster knows, there is no owner: the API server rejects an empty one.
        """
        metadata: Manifest = {"name": name, "namespace": self.namespace, "labels": self.labels()}
        if owned and self.uid:
            metadata["ownerReferences"] = [
                {
                    "apiVersion": STORED_API_VERSION,
                    "kind": KIND,
                    "name": self.name,
                    "uid": self.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ]
        return metadata


def with_hash(manifest: Manifest, value: str | None = None) -> Manifest:
    """The manifest with its hash, or `value`, as an annotation: shows whether the spec has changed."""
    metadata = manifest["metadata"]
    annotations = metadata.get("annotations", {}) | {ANNOTATION_HASH: value or digest(manifest)}
    return manifest | {"metadata": metadata | {"annotations": annotations}}
