"""values.schema.json is written by hand except for `platform`, which comes from the operator's model."""

import json
from pathlib import Path
from typing import Any

from megatron_operator.api.platform import PlatformConfig

PATH = Path(__file__).parents[3] / "charts" / "megatron-operator" / "values.schema.json"


def platform_schema() -> tuple[dict[str, Any], dict[str, Any]]:
    schema = _plain(PlatformConfig.model_json_schema())
    definitions = schema.pop("$defs")
    return schema, definitions


def _plain(value: Any) -> Any:
    """Without the titles and defaults that pydantic adds."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items() if key not in ("title", "default")}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def test_platform_values_have_the_schema_of_the_platform_file(pytestconfig: Any) -> None:
    schema = json.loads(PATH.read_text())
    platform, definitions = platform_schema()
    if pytestconfig.getoption("--update-golden"):
        schema["properties"]["platform"], schema["$defs"] = platform, definitions
        PATH.write_text(json.dumps(schema, indent=2) + "\n")
    assert schema["properties"]["platform"] == platform, "run `make golden`"
    assert schema["$defs"] == definitions, "run `make golden`"
