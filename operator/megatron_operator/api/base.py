"""The base class of all API models: frozen, camelCase in YAML, unknown fields rejected.

The string under a field is its description in the CRD and in docs/recipe.md.
"""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class ApiModel(BaseModel):
    """A section of the resource. Python names are snake_case, names in YAML and JSON camelCase."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        allow_inf_nan=False,
        frozen=True,
        defer_build=True,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )

    def wire(self) -> dict[str, object]:
        """The model as JSON-compatible values with camelCase keys, without fields that are None."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")
