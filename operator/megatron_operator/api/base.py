"""The one base of all API models: frozen, camelCase on the outside, unknown fields refused.

The text under a field becomes its description in the CRD (`schema` reads it from the source).
"""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class ApiModel(BaseModel):
    """A piece of the resource. Python names are snake_case, the wire names camelCase."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        defer_build=True,
        protected_namespaces=(),
    )

    def wire(self) -> dict[str, object]:
        """The model as it stands in YAML: camelCase, nothing that was not said."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")
