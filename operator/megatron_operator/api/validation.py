"""Offline validation of a recipe's YAML: the schema, then the rules across fields."""

import difflib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from megatron_operator.api import duration
from megatron_operator.api.base import ApiModel
from megatron_operator.api.bounds import LONGEST_TEXT
from megatron_operator.api.errors import FieldError, InvalidRecipeError, field_path, shown, shown_key
from megatron_operator.api.fine_tuning import (
    ABSOLUTE_PATTERN,
    FOLDER_PATTERN,
    HUB_NAME_PATTERN,
    REVISION_PATTERN,
)
from megatron_operator.api.labels import API_VERSIONS, KIND
from megatron_operator.api.model import WINDOW_PATTERN
from megatron_operator.api.nulls import without_nulls
from megatron_operator.api.other_names import fix_for_layer, fix_for_name, fix_for_value, plain
from megatron_operator.api.platform import SIGN_PATTERN
from megatron_operator.api.pod_environment import KEY_PATTERN, PREFIX_PATTERN
from megatron_operator.api.recipe import (
    DATASET_PATTERN,
    ENDPOINT_PATTERN,
    QUANTITY_PATTERN,
    REGION_PATTERN,
    RELATIVE_PATTERN,
    SPLIT_PATTERN,
    MegatronRecipeSpec,
)
from megatron_operator.api.rules import RULES
from megatron_operator.api.text_checks import character_errors, metadata_errors, recipe_text_errors
from megatron_operator.api.tracking import TRACKING_URI_PATTERN, WANDB_NAME_PATTERN
from megatron_operator.api.training import AMOUNT_PATTERN


def parse_recipe(resource: Mapping[str, Any]) -> MegatronRecipeSpec:
    """The spec of a MegatronRecipe object. Raises InvalidRecipeError with every schema and rule error."""
    errors = [
        FieldError(
            name,
            f"unsupported value {shown(resource[name])}" if resource.get(name) else "is required",
            f"set {supported[0]}",
        )
        for name, supported in (("apiVersion", API_VERSIONS), ("kind", (KIND,)))
        if resource.get(name) not in supported
    ]
    if errors:
        raise InvalidRecipeError(errors)
    metadata = resource.get("metadata")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidRecipeError(
            [FieldError("metadata", f"{shown(metadata)} is not an object", "set a name")]
        )
    errors = [*metadata_errors(metadata or {}), *_misplaced(resource)]
    spec = resource.get("spec")
    if not isinstance(spec, Mapping):
        problem = "is required" if spec is None else f"{shown(spec)} is not an object"
        raise InvalidRecipeError([*errors, FieldError("spec", problem, "describe the run below it")])
    try:
        parsed = parse_spec(spec)
    except InvalidRecipeError as error:
        raise InvalidRecipeError([*errors, *error.errors]) from error
    if errors:
        raise InvalidRecipeError(errors)
    return parsed


def _misplaced(resource: Mapping[str, Any]) -> Iterator[FieldError]:
    """Errors of fields beside `spec`, which kubectl refuses: often they are not indented far enough."""
    sections = {str(info.alias) for info in MegatronRecipeSpec.model_fields.values()}
    for name in map(str, resource):
        if name not in ("apiVersion", "kind", "metadata", "spec", "status"):
            fix = f"indent it: set spec.{name}" if name in sections else "leave it out"
            yield FieldError(shown_key(name), "unknown field beside spec", fix)


def parse_spec(spec: Mapping[str, Any]) -> MegatronRecipeSpec:
    """A spec alone. Raises InvalidRecipeError with every schema and rule error."""
    spec = without_nulls(MegatronRecipeSpec, spec)
    parsed = parse(MegatronRecipeSpec, spec, "spec")
    if errors := [*recipe_text_errors(spec), *rule_errors(spec)]:
        raise InvalidRecipeError(errors)
    return parsed


def parse[M: ApiModel](model: type[M], value: Any, at: str) -> M:
    """Any model of the API, with the API server's strict types: a number is no string.

    `at` is the path of `value` in error messages. Raises InvalidRecipeError with every schema error.
    """
    try:
        parsed = model.model_validate(value, strict=True, by_alias=True, by_name=False)
    except ValidationError as problem:
        errors = problem.errors(include_url=False)
        found = [_translate(model, error, at) for error in errors]
        if any(error["type"] == "string_unicode" for error in errors):
            # Half of a surrogate pair: reported as the other characters that cannot be printed.
            unprintable = character_errors(value, at)
            reported = {error.field for error in unprintable}
            found = [*(error for error in found if error.field not in reported), *unprintable]
        raise InvalidRecipeError(_distinct(found)) from None
    if unprintable := character_errors(value, at):
        raise InvalidRecipeError(unprintable)
    return parsed


def rule_errors(spec: Mapping[str, Any]) -> list[FieldError]:
    """Errors of the rules across fields; the schema must accept `spec`."""
    errors = []
    for rule in RULES:
        for at, target in _targets(spec, "spec", rule.at.split(".")[1:]):
            if not rule.holds.evaluate(target):
                path = f"{at}.{rule.field}" if rule.field else at
                errors.append(FieldError(path, rule.message.format(target), rule.fix))
    return errors


def _targets(value: Any, at: str, names: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Path and value of each object that a rule's path names; none where a part of it is not set."""
    if not isinstance(value, Mapping):
        return
    if not names:
        yield at, value
        return
    name, rest = names[0].rstrip("{}[]"), names[1:]
    inner, path = value.get(name), field_path(at, name)
    if names[0].endswith("{}"):
        children: Iterable[tuple[int | str, Any]] = inner.items() if isinstance(inner, Mapping) else ()
    elif names[0].endswith("[]"):
        children = enumerate(inner) if isinstance(inner, list) else ()
    else:
        yield from _targets(inner, path, rest)
        return
    for key, child in children:
        yield from _targets(child, field_path(path, key), rest)


def _distinct(errors: list[FieldError]) -> list[FieldError]:
    """Each error once. Of a value with several types, each has its error: that of a length is the best."""
    too_long = {error.field for error in errors if error.fix == _TOO_LONG}
    return [
        error
        for i, error in enumerate(errors)
        if error not in errors[:i] and (error.field not in too_long or error.fix == _TOO_LONG)
    ]


_WITH_FLAGS = ("model", "training", "parallelism")
"""Sections whose fields are flags of Megatron."""

_TOO_LONG = f"set at most {LONGEST_TEXT} characters or entries"

_PATTERNS = {
    AMOUNT_PATTERN: ("number", "use a number with an optional suffix K, M, B or T, for example 15T"),
    QUANTITY_PATTERN: ("quantity", "use for example 4Ti"),
    ABSOLUTE_PATTERN: ("path", "use an absolute path, as the pod sees it"),
    FOLDER_PATTERN: (
        "folder",
        "name a folder of a volume, for example /data/model; a name on a hub is set in "
        "init.from.huggingFace.name, where platform.hub.enabled is true",
    ),
    HUB_NAME_PATTERN: ("name", "use owner and model as on the hub, for example meta-llama/Llama-3.1-8B"),
    REVISION_PATTERN: ("revision", "use a branch, a tag or a commit of the model, for example main"),
    RELATIVE_PATTERN: ("path", "use a path relative to the data volume, without a leading slash"),
    duration.PATTERN: ("duration", "use seconds, or for example 10m or 1h30m"),
    duration.WORD_PATTERN: ("timeout", "use auto, off, or for example 10m or 90s"),
    SPLIT_PATTERN: ("split", "use three shares, for example 99,1,0"),
    ENDPOINT_PATTERN: ("URL", "use for example http://minio.storage:9000, without credentials in it"),
    REGION_PATTERN: ("region", "use small letters, digits and -, for example eu-central-1"),
    DATASET_PATTERN: ("name", "use letters, digits, dots, - and _"),
    KEY_PATTERN: ("key", "use letters, digits, -, _ and ., as in the object"),
    PREFIX_PATTERN: ("prefix", "use letters, digits, _, - and ., no digit first"),
    SIGN_PATTERN: ("name", "use a node condition's type or a taint's key, with =True, =False or =Unknown"),
    TRACKING_URI_PATTERN: ("URL", "use http://server:port or https://server, without user and password"),
    WANDB_NAME_PATTERN: ("name", "use a name without /, \\, #, ?, % and :"),
    WINDOW_PATTERN: ("window", "use the keys before and after a query, for example 128,0"),
}
"""Pattern of a field -> what the field holds, and how to write it."""

_LARGEST_SHOWN = 10**18
"""Above it a number is not repeated in a fix: no field takes one."""

_TYPES = {
    "int_type": ("an integer", "an integer"),
    "int_from_float": ("an integer", "an integer"),
    "float_type": ("a number", "a number"),
    "string_type": ("a string", "a string"),
    "bool_type": ("a boolean", "true or false"),
    "dict_type": ("an object", "an object"),
    "list_type": ("a list", "a list"),
    "model_type": ("an object", "an object"),
    "model_attributes_type": ("an object", "an object"),
}
"""Type of a pydantic error -> the expected type, and what to set."""


def _number(limit: float) -> str:
    """A limit as people write it: `1000000`, also for a field that takes fractions."""
    return str(int(limit)) if limit == int(limit) else f"{limit:g}"


def _translate(model: type[ApiModel], error: ErrorDetails, at: str) -> FieldError:
    """The error in words of the API, with the fix for what other releases took there."""
    found = _in_words(model, error, at)
    fix = fix_for_value(str(error["loc"][-1]), error["type"]) if error["loc"] else None
    if error["loc"][:-1] == ("env",) and isinstance(error["input"], Mapping):
        fix = (
            "set a string; a value of a Secret, a ConfigMap or a field of the pod goes below"
            " spec.envValueFrom"
        )
    if "targetModules" in error["loc"]:
        fix = fix_for_layer(error["input"])
    return replace(found, fix=fix) if fix and model is MegatronRecipeSpec else found


def _in_words(model: type[ApiModel], error: ErrorDetails, at: str) -> FieldError:
    location: list[int | str] = []
    for part in error["loc"]:
        if _is_union_branch(part):
            fix = "set a string, number, boolean, or list of strings and numbers"
            if error["type"] in ("string_too_long", "too_long"):
                fix = _TOO_LONG
            return FieldError(_path(at, location), "unsupported value of a flag", fix)
        location.append(part)
    path = _path(at, location)
    context, given = error.get("ctx", {}), shown(error["input"])
    match error["type"]:
        case "missing":
            return FieldError(path, "is required", "set it")
        case "extra_forbidden":
            return FieldError(path, "unknown field", _suggestion(model, location))
        case "greater_than_equal":
            least = _number(context["ge"])
            return FieldError(path, f"{given} is below {least}", f"set at least {least}")
        case "greater_than":
            least = _number(context["gt"])
            return FieldError(path, f"{given} is not above {least}", f"set more than {least}")
        case "less_than":
            most = _number(context["lt"])
            return FieldError(path, f"{given} is not below {most}", f"set less than {most}")
        case "less_than_equal":
            most = _number(context["le"])
            return FieldError(path, f"{given} is above {most}", f"set at most {most}")
        case "literal_error":
            return FieldError(path, f"unsupported value {given}", f"set one of {context['expected']}")
        case "string_pattern_mismatch":
            what, fix = _PATTERNS[context["pattern"]]
            return FieldError(path, f"invalid {what} {given}", fix)
        case "string_too_short" | "too_short":
            return FieldError(path, "must not be empty", "set a value, or leave it out")
        case "string_too_long" | "too_long":
            most, unit = context["max_length"], "characters" if "string" in error["type"] else "entries"
            return FieldError(path, f"has {len(error['input'])} {unit}", f"set at most {most}")
        case "finite_number":
            return FieldError(path, f"{given} is not a finite number", "set a finite number")
        case kind if kind in _TYPES:
            expected, fix = _TYPES[kind]
            return FieldError(path, f"{given} is not {expected}", f"set {_meant(error) or fix}")
        case _:
            return FieldError(path, error["msg"], "correct the value")


def _meant(error: ErrorDetails) -> str | None:
    """The number that was written in quotes or as a fraction; None where the value is not one."""
    value, is_integer = error["input"], error["type"].startswith("int")
    if isinstance(value, float) and is_integer and value.is_integer() and abs(value) < _LARGEST_SHOWN:
        return f"{value:.0f}"
    if not isinstance(value, str) or len(value) > len(str(_LARGEST_SHOWN)):
        return None
    if error["type"] not in ("int_type", "float_type"):
        return None
    try:
        number = int(value) if is_integer else float(value)
    except ValueError:
        return None
    return f"{number!r}, without quotes" if math.isfinite(number) else None


def _path(at: str, location: list[int | str]) -> str:
    return functools.reduce(field_path, location, at)


def _is_union_branch(part: int | str) -> bool:
    """Whether pydantic added this part of the location to name a branch of a union."""
    return isinstance(part, str) and (
        part in {"str", "constrained-str", "int", "float", "bool"} or part.startswith("list[")
    )


def _suggestion(model: type[ApiModel], location: list[int | str]) -> str:
    names = _fields_at(model, [part for part in location[:-1] if isinstance(part, str)])
    unknown = str(location[-1])
    spelled = {plain(name): name for name in names}
    if plain(unknown) in spelled:
        return f"did you mean `{spelled[plain(unknown)]}`?"
    if model is not MegatronRecipeSpec:
        close = difflib.get_close_matches(unknown, names, n=1)
        return f"did you mean `{close[0]}`?" if close else "leave it out"
    # `profile.rank` means `ranks`, not the rank of LoRA: the field's own section comes first.
    section = str(location[0]) if len(location) > 1 else ""
    if fix := (fix_for_name(unknown, section) if section else None) or _elsewhere(unknown):
        return fix
    plural = [name for name in names if plain(name).rstrip("s") == plain(unknown).rstrip("s")]
    if plural:
        return f"did you mean `{plural[0]}`?"
    if fix := fix_for_name(unknown):
        return fix
    if close := difflib.get_close_matches(unknown, names, n=1):
        return f"did you mean `{close[0]}`?"
    if within := [name for name in names if plain(unknown) in plain(name)]:
        return f"did you mean `{within[0]}`?"
    if section in _WITH_FLAGS:
        return "leave it out; other Megatron flags go below spec.megatronArgs"
    return "leave it out"


def _elsewhere(name: str) -> str | None:
    """The fix for a field of another section, or of a section that is written at the top."""
    for section in MegatronRecipeSpec.model_fields.values():
        for leaf in _fields_of(section.annotation, []):
            if plain(leaf) == plain(name):
                return f"set spec.{section.alias}.{leaf}"
    return None


def _fields_at(model: type[ApiModel], location: list[str]) -> list[str]:
    fields = {info.alias or name: info.annotation for name, info in model.model_fields.items()}
    if not location:
        return list(fields)
    return _fields_of(fields.get(location[0]), location[1:])


def _fields_of(annotation: Any, location: list[str]) -> list[str]:
    """Names of the fields below an annotation: a model, a list or map of models, or an optional one."""
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return _fields_at(annotation, location)
    arguments: tuple[Any, ...] = getattr(annotation, "__args__", ())
    if getattr(annotation, "__origin__", None) is dict:
        return _fields_of(arguments[1], location[1:])
    return next((found for each in arguments if (found := _fields_of(each, location))), [])
