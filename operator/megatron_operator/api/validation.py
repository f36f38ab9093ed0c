"""A recipe's YAML against the schema and the rules, offline, in our own words."""

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from megatron_operator.api.base import ApiModel
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.labels import API_VERSION, KIND
from megatron_operator.api.recipe import (
    DATASET_PATTERN,
    HANG_PATTERN,
    QUANTITY_PATTERN,
    RELATIVE_PATTERN,
    SPLIT_PATTERN,
    MegatronRecipeSpec,
)
from megatron_operator.api.rules import RULES
from megatron_operator.api.training import AMOUNT_PATTERN


def parse_recipe(resource: Mapping[str, Any]) -> MegatronRecipeSpec:
    """The spec of a MegatronRecipe object. Raises InvalidRecipeError with every schema and rule error."""
    errors = [
        FieldError(name, f"is {resource.get(name)!r}", f"set {wanted}")
        for name, wanted in (("apiVersion", API_VERSION), ("kind", KIND))
        if resource.get(name) != wanted
    ]
    if errors:
        raise InvalidRecipeError(errors)
    spec = resource.get("spec")
    if not isinstance(spec, Mapping):
        raise InvalidRecipeError([FieldError("spec", "is missing", "write what is to be trained below it")])
    return parse_spec(spec)


def parse_spec(spec: Mapping[str, Any]) -> MegatronRecipeSpec:
    """A spec alone. Raises InvalidRecipeError with every schema and rule error."""
    parsed = parse(MegatronRecipeSpec, spec, "spec")
    if errors := rule_errors(spec):
        raise InvalidRecipeError(errors)
    return parsed


def parse[M: ApiModel](model: type[M], value: Any, at: str) -> M:
    """Any of the API's models, strictly typed as the API server does. Raises InvalidRecipeError."""
    try:
        return model.model_validate(value, strict=True, by_alias=True, by_name=False)
    except ValidationError as problem:
        found = [_translate(model, error, at) for error in problem.errors(include_url=False)]
        raise InvalidRecipeError(_distinct(found)) from None


def rule_errors(spec: Mapping[str, Any]) -> list[FieldError]:
    """The rules between fields that a spec breaks; for a spec that the schema accepts."""
    errors = []
    for rule in RULES:
        target: Any = spec
        for name in rule.at.split(".")[1:]:
            target = target.get(name) if isinstance(target, Mapping) else None
        if isinstance(target, Mapping) and not rule.holds.of(target):
            errors.append(FieldError(rule.path, rule.message.of(target), rule.fix))
    return errors


def _distinct(errors: list[FieldError]) -> list[FieldError]:
    return [error for i, error in enumerate(errors) if error not in errors[:i]]


_WRITTEN = {
    AMOUNT_PATTERN: "write a number with K, M, B, T or nothing after it, as in 15T",
    QUANTITY_PATTERN: "write a Kubernetes quantity, as in 2Ti",
    RELATIVE_PATTERN: "write the path below the data volume, without a slash before it",
    HANG_PATTERN: "write auto, off or seconds, as in 600s",
    SPLIT_PATTERN: "write three shares, as in 99,1,0",
    DATASET_PATTERN: "use letters, digits, dots, - and _",
}

_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "list_type": "a list",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def _translate(model: type[ApiModel], error: ErrorDetails, at: str) -> FieldError:
    location: list[int | str] = []
    for part in error["loc"]:
        if _is_union_branch(part):
            kinds = "text, a number, true, or a list of these"
            return FieldError(_path(at, location), "is no value of a flag", f"write {kinds}")
        location.append(part)
    path = _path(at, location)
    context, given = error.get("ctx", {}), error["input"]
    match error["type"]:
        case "missing":
            return FieldError(path, "is missing", "set it")
        case "extra_forbidden":
            return FieldError(path, "is no field of the resource", _nearest(model, location))
        case "greater_than_equal":
            return FieldError(path, f"{given} is below {context['ge']}", f"set at least {context['ge']}")
        case "greater_than":
            return FieldError(
                path, f"{given} is not above {context['gt']:g}", f"set more than {context['gt']:g}"
            )
        case "less_than_equal":
            return FieldError(path, f"{given} is above {context['le']:g}", f"set at most {context['le']:g}")
        case "literal_error":
            return FieldError(path, f"{given!r} is none of the choices", f"set one of {context['expected']}")
        case "string_pattern_mismatch":
            return FieldError(path, f"{given!r} is not written as it must be", _WRITTEN[context["pattern"]])
        case "string_too_short" | "too_short":
            return FieldError(path, "is empty", "give a value, or leave it out")
        case "string_too_long" | "too_long":
            return FieldError(path, "is too long", f"give at most {context['max_length']}")
        case kind if kind in _KINDS:
            return FieldError(path, f"{given!r} is not {_KINDS[kind]}", f"write {_KINDS[kind]}")
        case _:
            return FieldError(path, error["msg"], "see kubectl explain megatronrecipe")


def _path(at: str, location: list[int | str]) -> str:
    return at + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def _is_union_branch(part: int | str) -> bool:
    """pydantic names the branch of a union in the location; it is no part of the user's path."""
    return isinstance(part, str) and (part in {"str", "int", "float", "bool"} or part.startswith("list["))


def _nearest(model: type[ApiModel], location: list[int | str]) -> str:
    """The field that was probably meant."""
    names = _fields_at(model, [part for part in location[:-1] if isinstance(part, str)])
    if close := difflib.get_close_matches(str(location[-1]), names, n=1):
        return f"set {close[0]}"
    return "leave it out; other Megatron flags go below spec.megatronArgs"


def _fields_at(model: type[ApiModel], location: list[str]) -> list[str]:
    fields = {info.alias or name: info.annotation for name, info in model.model_fields.items()}
    if not location:
        return list(fields)
    return _fields_of(fields.get(location[0]), location[1:])


def _fields_of(annotation: Any, location: list[str]) -> list[str]:
    """Fields below an annotation: a model, a list or mapping of models, or an optional one of these."""
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return _fields_at(annotation, location)
    arguments: tuple[Any, ...] = getattr(annotation, "__args__", ())
    if getattr(annotation, "__origin__", None) is dict:
        return _fields_of(arguments[1], location[1:])
    return next((found for each in arguments if (found := _fields_of(each, location))), [])
