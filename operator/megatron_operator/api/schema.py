"""From a pydantic model to the structural OpenAPI schema that a CRD takes."""

from typing import Any

from megatron_operator.api.base import ApiModel

Schema = dict[str, Any]

_KEPT = (
    "description",
    "enum",
    "format",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "pattern",
    "required",
)

_INT_OR_STRING = "x-kubernetes-int-or-string"


def structural(model: type[ApiModel]) -> Schema:
    """The model's schema with references inlined, null branches dropped and OpenAPI 3.0 spelling."""
    whole = model.model_json_schema(by_alias=True, mode="validation")
    return _convert(whole, whole.get("$defs", {}))


def _convert(node: Schema, definitions: dict[str, Schema]) -> Schema:
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[1]]
        return _convert({**target, **{k: v for k, v in node.items() if k != "$ref"}}, definitions)
    if "anyOf" in node:
        return _union(node, definitions)
    schema: Schema = {key: node[key] for key in _KEPT if key in node}
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].split())
    if "const" in node:
        schema["enum"] = [node["const"]]
    if "exclusiveMinimum" in node:
        schema |= {"minimum": node["exclusiveMinimum"], "exclusiveMinimum": True}
    if "exclusiveMaximum" in node:
        schema |= {"maximum": node["exclusiveMaximum"], "exclusiveMaximum": True}
    if node.get("default") is not None:
        schema["default"] = _default(node["default"])
    kind = node.get("type")
    if kind is not None:
        schema["type"] = kind
    if node.get(_INT_OR_STRING):
        schema[_INT_OR_STRING] = True
    if kind == "integer":
        schema["format"] = "int64"
    if kind == "array":
        schema["items"] = _convert(node["items"], definitions)
    if "properties" in node:
        schema["properties"] = {
            name: _convert(child, definitions) for name, child in node["properties"].items()
        }
    elif isinstance(node.get("additionalProperties"), dict):
        schema["additionalProperties"] = _convert(node["additionalProperties"], definitions)
    return schema


def _union(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """An optional value becomes its one branch; a value of several types is not checked by the schema."""
    branches = [branch for branch in node["anyOf"] if branch.get("type") != "null"]
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    if len(branches) == 1:
        return _convert({**branches[0], **rest}, definitions)
    described = {"description": " ".join(rest["description"].split())} if "description" in rest else {}
    return described | {"x-kubernetes-preserve-unknown-fields": True}


def _default(value: Any) -> Any:
    """The default of an object is {}: the defaults of its fields are declared at the fields."""
    return {} if isinstance(value, dict) else value
