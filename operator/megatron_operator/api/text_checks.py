"""Checks of the strings of a recipe or platform that end up in arguments, environment, names and labels.

The CRD's schema checks types; here is what a structural schema cannot express: keys of maps, characters that
change the meaning of a line, words that Megatron would take for a flag, paths that leave their volume.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from megatron_operator.api.errors import FieldError, field_path, shown

_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NUL: Final = re.compile(r"[\x00\ud800-\udfff]")
NEGATIVE_NUMBER: Final = re.compile(r"-[0-9]+|-[0-9]*\.[0-9]+")
"""What argparse takes for a negative number; any other word with a dash in front is a flag."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a string must look like."""

    pattern: re.Pattern[str]
    longest: int
    """Characters."""
    what: str
    """What an error calls the string."""
    fix: str

    def error(self, text: str, field: str) -> FieldError | None:
        """The error of a string that has another form, if it has."""
        if len(text) <= self.longest and self.pattern.fullmatch(text):
            return None
        return FieldError(field, f"invalid {self.what} {shown(text)}", self.fix)


_LABEL = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_DNS = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
NAME: Final = Form(
    re.compile(_DNS), 253, "name", "use the name of an object: lower-case letters, digits, - and ."
)
SHORT_NAME: Final = Form(
    re.compile(_DNS), 63, "name", "use at most 63 lower-case letters, digits, - and ., as in a label"
)
NODE_LABEL: Final = Form(
    re.compile(rf"({_DNS}/)?{_LABEL}"), 317, "label key", "use for example example.com/zone"
)
NODE_LABEL_VALUE: Final = Form(
    re.compile(rf"({_LABEL})?"), 63, "label value", "use at most 63 letters, digits, -, _ and ."
)
RESOURCE: Final = Form(NODE_LABEL.pattern, 317, "resource name", "use for example nvidia.com/gpu")
ENV_NAME: Final = Form(
    re.compile(r"[-._A-Za-z][-._A-Za-z0-9]*"), 253, "variable name", "use letters, digits, _, - and ."
)
IMAGE: Final = Form(re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.:/@]*"), 500, "image", "use registry/name:tag")

_FORMS: Final = {
    "init.from.recipe": NAME,
    "data.volume.claimName": NAME,
    "data.volume.storageClassName": NAME,
    "checkpoint.volume.claimName": NAME,
    "checkpoint.volume.storageClassName": NAME,
    "scheduling.queue": SHORT_NAME,
    "scheduling.workloadPriorityClassName": SHORT_NAME,
    "scheduling.priorityClassName": NAME,
    "scheduling.topology[]": NODE_LABEL,
    "scheduling.requiredTopology": NODE_LABEL,
    "scheduling.nodeSelector{}": NODE_LABEL,
    "scheduling.nodeSelector.*": NODE_LABEL_VALUE,
    "imagePullSecrets[]": NAME,
    "image": IMAGE,
    "env{}": ENV_NAME,
    "envValueFrom{}": ENV_NAME,
    "envValueFrom.*.secretKeyRef.name": NAME,
    "envValueFrom.*.configMapKeyRef.name": NAME,
    "envFrom[].secretRef.name": NAME,
    "envFrom[].configMapRef.name": NAME,
    "serviceAccountName": NAME,
    "data.prepare.objectStorage.secretName": NAME,
    "init.from.huggingFace.secretKeyRef.name": NAME,
    "tracking.wandb.secretKeyRef.name": NAME,
    "tracking.mlflow.secretKeyRef.name": NAME,
}
"""Field of a recipe -> form; `[]` are the items of a list, `{}` the keys of a map and `.*` its values."""
_PLATFORM_FORMS: Final = {
    "image": IMAGE,
    "bridgeImage": IMAGE,
    "imagePullSecrets[]": NAME,
    "checkpoint.storageClassName": NAME,
    "dataStorageClassName": NAME,
    "queue": SHORT_NAME,
    "networkPolicies.operatorNamespace": SHORT_NAME,
    "networkPolicies.metricsFrom[]": SHORT_NAME,
    "accelerators.*.image": IMAGE,
    "accelerators.*.resourceName": RESOURCE,
    "accelerators.*.extraResources{}": RESOURCE,
    "accelerators.*.podTemplate.resources{}": RESOURCE,
    "accelerators.*.nodeLabels{}": NODE_LABEL,
    "accelerators.*.nodeLabels.*": NODE_LABEL_VALUE,
    "accelerators.*.topology[]": NODE_LABEL,
    "accelerators.*.env{}": ENV_NAME,
}
"""The same of a platform file; `*` is also the name of a profile."""
_MAY_BE_EMPTY: Final = {
    "image",
    "bridgeImage",
    "checkpoint.storageClassName",
    "dataStorageClassName",
    "accelerators.*.image",
}
"""No image, and a class of no provisioner."""
LONGEST: Final = 4096
"""Characters of any other string: a path of the file system has no more."""
LONGEST_VARIABLE: Final = 65_536
"""Characters of the value of an environment variable."""
_FREE: Final = {
    "env",
    "envValueFrom",
    "megatronArgs",
    "nodeSelector",
    "nodeLabels",
    "accelerators",
    "namespaces",
    "annotations",
}
_PATHS: Final = {
    "data.blend[].path",
    "data.tokenizer.tokenizerModel",
    "data.tokenizer.vocabFile",
    "data.tokenizer.mergeFile",
    "data.prepare.source",
    "data.prepare.include",
    "data.sources[].path",
    "data.datasetRoot",
    "init.modelFolder",
    "init.from.megatron.path",
    "init.from.huggingFace.path",
    "export.huggingFace.path",
    "export.huggingFace.base",
}
_METADATA: Final = (
    "name",
    "generateName",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
)
"""Fields of Kubernetes' ObjectMeta."""
_ARGUMENTS: Final = ("data.tokenizer.", "data.prepare.", "training.", "parallelism.", "megatronArgs.")


def recipe_text_errors(spec: Mapping[str, Any]) -> list[FieldError]:
    """Errors of all strings and keys of a recipe's spec that has the schema's types."""
    found = []
    for path, kind, text in _strings(spec, "spec", ""):
        if error := _recipe_error(path, kind, text):
            found.append(error)
    return found


def platform_text_errors(content: Mapping[str, Any], at: str) -> list[FieldError]:
    """Errors of names, labels and images of a platform file that has the schema's types; `at` is its path."""
    return [
        error
        for path, kind, text in _strings(content, at, "")
        if (form := _PLATFORM_FORMS.get(kind))
        and (text or kind not in _MAY_BE_EMPTY)
        and (error := form.error(text, path))
    ]


def character_errors(value: object, at: str) -> list[FieldError]:
    """Errors of strings and keys that are too long or have control characters.

    Values of `env` and annotations, and arguments of a sidecar, may have several lines.
    """
    return [e for path, kind, text in _strings(value, at, "") if (e := _character_error(path, kind, text))]


def _name_errors(metadata: Mapping[str, Any]) -> list[FieldError]:
    """Errors of a recipe's name and namespace, which no API server has checked in a file."""
    found = []
    for key, longest in (("name", 253), ("namespace", 63)):
        text = metadata.get(key)
        if text is None or text == "":
            continue
        if not isinstance(text, str) or len(text) > longest or not NAME.pattern.fullmatch(text):
            found.append(FieldError(f"metadata.{key}", f"invalid name {shown(text)}", NAME.fix))
    return found


def metadata_errors(metadata: Mapping[str, Any]) -> list[FieldError]:
    """Errors of a recipe's metadata that the API server would refuse: names, unknown fields, labels,
    annotations."""
    found = _name_errors(metadata)
    for name in (str(key) for key in metadata if key not in _METADATA):
        near = difflib.get_close_matches(name, _METADATA, n=1)
        fix = f"did you mean `{near[0]}`?" if near else "leave it out, or make it a label or an annotation"
        found.append(FieldError(field_path("metadata", name), "unknown field", fix))
    for section in ("labels", "annotations"):
        found += _pair_errors(f"metadata.{section}", metadata.get(section))
    return found


def _pair_errors(at: str, pairs: object) -> list[FieldError]:
    """Errors of labels or annotations: both are maps of strings to strings, with keys of one form."""
    if pairs is None:
        return []
    if not isinstance(pairs, Mapping):
        return [FieldError(at, f"{shown(pairs)} is not an object", "set an object of strings")]
    found = []
    for key, value in ((str(key), value) for key, value in pairs.items()):
        path = field_path(at, key)
        if len(key) > NODE_LABEL.longest or not NODE_LABEL.pattern.fullmatch(key):
            found.append(FieldError(path, f"invalid key {shown(key)}", NODE_LABEL.fix))
        if not isinstance(value, str):
            found.append(FieldError(path, f"{shown(value)} is not a string", "write it in quotes"))
        elif at.endswith("labels") and (
            len(value) > NODE_LABEL_VALUE.longest or not NODE_LABEL_VALUE.pattern.fullmatch(value)
        ):
            found.append(FieldError(path, f"invalid label value {shown(value)}", NODE_LABEL_VALUE.fix))
    return found


def _recipe_error(path: str, kind: str, text: str) -> FieldError | None:
    if error := _character_error(path, kind, text):
        return error
    if (form := _FORMS.get(kind)) and (error := form.error(text, path)):
        return error
    if kind in _PATHS and ".." in text.split("/"):
        return FieldError(path, f"{shown(text)} leaves its directory", "use a path without ..")
    if text.startswith("-") and kind.startswith(_ARGUMENTS) and not kind.endswith("{}"):
        if kind.startswith("megatronArgs.") and NEGATIVE_NUMBER.fullmatch(text):
            return None
        message = f"{shown(text)} begins with a dash, so Megatron would read it as a flag"
        return FieldError(path, message, "set the flag itself below spec.megatronArgs, or remove the dash")
    return None


def _character_error(path: str, kind: str, text: str) -> FieldError | None:
    in_environment = kind == "env.*" or kind.endswith((".env.*", ".annotations.*"))
    several_lines = in_environment or kind.endswith((".command[]", ".args[]"))
    if (_NUL if several_lines else _UNPRINTABLE).search(text):
        return FieldError(path, f"{shown(text)} has a control character", "remove it")
    longest = LONGEST_VARIABLE if in_environment else LONGEST
    if len(text) > longest:
        return FieldError(path, f"{shown(text)} has {len(text)} characters", f"use at most {longest}")
    return None


def _strings(value: object, path: str, kind: str) -> Iterator[tuple[str, str, str]]:
    """Path, kind (the path with `[]`, `{}` and `.*` for items, keys and values) and text of each string."""
    if isinstance(value, str):
        yield path, kind, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _strings(item, f"{path}[{index}]", f"{kind}[]")
    elif isinstance(value, Mapping):
        free = _is_free(kind)
        for key, item in value.items():
            below = field_path(path, key)
            if isinstance(key, str):
                yield below, f"{kind}{{}}", key
            yield from _strings(item, below, f"{kind}.*" if free else f"{kind}.{key}".removeprefix("."))


def _is_free(kind: str) -> bool:
    """Whether the keys of a map are the user's own."""
    return kind.rsplit(".", 1)[-1] in _FREE
