"""Recipes, jobs and pods as the watches delivered them, so that a run that trains costs no read.

What a cache holds may be out of date, and what it lacks may exist. `SnapshotReader.from_cache` therefore only
uses it for runs that train undisturbed, and `Reconciler` reads from the API server before it acts.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from megatron_operator.api.json_documents import loads
from megatron_operator.api.labels import LABEL_RECIPE
from megatron_operator.controller.api_resources import PODS, RECIPES, TRAINING_JOBS, Resource
from megatron_operator.controller.first_runs import FirstRuns
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.status_builder import RecipeKey
from megatron_operator.manifests import pytorchjob

FASTEST: Final = 1
"""Level of compression: a pod takes 1 to 2 KB."""
OBJECT_BYTES: Final = 64 * 2**10
"""The largest compressed object of which the content is kept: anybody can give a pod large annotations."""
CACHE_BYTES: Final = 96 * 2**20
"""Compressed content of all objects of one resource."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which object of a name it is, in which version, and of which recipe."""

    uid: str
    version: int
    recipe: RecipeKey


@dataclass(frozen=True, slots=True)
class _Entry:
    identity: Identity
    content: bytes | None
    """None where it exceeds the bounds."""

    def holds(self, other: Identity) -> bool:
        """Whether it has the content of this version: each own write is delivered once more by the watch."""
        return self.identity == other and self.content is not None


def identity(obj: Mapping[str, Any], *, is_recipe: bool) -> Identity:
    """The identity in an object's metadata. Versions of one resource can be compared as numbers."""
    metadata = obj["metadata"]
    name = metadata["name"] if is_recipe else metadata["labels"][LABEL_RECIPE]
    return Identity(metadata["uid"], int(metadata["resourceVersion"]), RecipeKey(metadata["namespace"], name))


class ObjectCache:
    """Objects of one resource.

    They are kept as compressed JSON without the field managers' own records: a tenth of the memory, and
    nobody who reads one can change it. Of what exceeds OBJECT_BYTES or CACHE_BYTES only the identity is kept.
    """

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self._is_recipe = resource is RECIPES
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._of_recipe: dict[RecipeKey, set[tuple[str, str]]] = {}
        self._bytes = 0

    def put(self, obj: Object) -> None:
        """Store an object unless a newer version, or a newer object of its name, is known."""
        new = identity(obj, is_recipe=self._is_recipe)
        known = self._entries.get(_key(obj))
        if known is not None and (known.identity.version > new.version or known.holds(new)):
            return
        self.discard(*_key(obj))
        content = _packed(obj)
        fits = len(content) <= OBJECT_BYTES and self._bytes + len(content) <= CACHE_BYTES
        self._store(_key(obj), _Entry(new, content if fits else None))

    def refresh(self, obj: Object) -> None:
        """Store the answer to an own write, unless the object was deleted or re-created meanwhile."""
        known = self._entries.get(_key(obj))
        if known is not None and known.identity.uid == obj["metadata"]["uid"]:
            self.put(obj)

    def remove(self, obj: Object) -> None:
        """Forget an object that was deleted; one of the same name that was created since stays."""
        known = self._entries.get(_key(obj))
        if known is not None and known.identity.uid == obj["metadata"]["uid"]:
            self.discard(*_key(obj))

    def discard(self, namespace: str, name: str) -> None:
        """Forget whatever has this name."""
        entry = self._entries.pop((namespace, name), None)
        if entry is not None:
            self._bytes -= len(entry.content or b"")
            keys = self._of_recipe[entry.identity.recipe]
            keys.discard((namespace, name))
            if not keys:
                del self._of_recipe[entry.identity.recipe]

    def get(self, namespace: str, name: str) -> Object | None:
        """A copy of the object of this name; None when none is known, or its content is not kept."""
        entry = self._entries.get((namespace, name))
        return None if entry is None or entry.content is None else _unpacked(entry.content)

    def of_recipe(self, key: RecipeKey) -> list[Object] | None:
        """Copies of all objects with the recipe's label; None when the content of one is not kept."""
        found = []
        for each in sorted(self._of_recipe.get(key, ())):
            content = self._entries[each].content
            if content is None:
                return None
            found.append(_unpacked(content))
        return found

    def identities(self) -> Iterator[tuple[tuple[str, str], Identity]]:
        """Namespace and name -> identity of every object."""
        return iter([(key, entry.identity) for key, entry in self._entries.items()])

    def known(self, namespace: str, name: str) -> Identity | None:
        """The identity of the object of this name."""
        entry = self._entries.get((namespace, name))
        return None if entry is None else entry.identity

    def _store(self, key: tuple[str, str], entry: _Entry) -> None:
        self._entries[key] = entry
        self._bytes += len(entry.content or b"")
        self._of_recipe.setdefault(entry.identity.recipe, set()).add(key)


class Caches:
    """The caches of one leadership; a process that is elected or restarted begins with empty ones.

    Those of training jobs are by kind: `jobs` has the kinds that this process handles.
    """

    def __init__(self, job_kinds: Iterable[str] = (pytorchjob.KIND,)) -> None:
        self.recipes = ObjectCache(RECIPES)
        self.jobs = {kind: ObjectCache(TRAINING_JOBS[kind]) for kind in job_kinds}
        self.pods = ObjectCache(PODS)
        self.first_runs = FirstRuns()

    @property
    def all(self) -> tuple[ObjectCache, ...]:
        """One for each resource."""
        return self.recipes, *self.jobs.values(), self.pods


def _key(obj: Mapping[str, Any]) -> tuple[str, str]:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _packed(obj: Object) -> bytes:
    managed = [
        {name: value for name, value in each.items() if name != "fieldsV1"}
        for each in obj["metadata"].get("managedFields") or ()
    ]
    kept = obj | {"metadata": obj["metadata"] | {"managedFields": managed}}
    try:
        content = orjson.dumps(kept)
    except orjson.JSONEncodeError:
        # Half of a surrogate pair, or more than 254 levels.
        content = json.dumps(kept, separators=(",", ":")).encode()
    return zlib.compress(content, FASTEST)


def _unpacked(content: bytes) -> Object:
    return dict(loads(zlib.decompress(content)))
