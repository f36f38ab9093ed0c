"""values.schema.json is written by hand except for `platform`, which comes from the operator's model."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.platform_validation import parse_platform

PATH = Path(__file__).parents[3] / "charts" / "megatron-operator" / "values.schema.json"
INT_OR_STRING = "x-kubernetes-int-or-string"


def platform_schema() -> tuple[dict[str, Any], dict[str, Any]]:
    schema = _plain(PlatformConfig.model_json_schema())
    definitions = schema.pop("$defs")
    return schema, definitions


def _plain(value: Any) -> Any:
    """Without the titles and defaults that pydantic adds, and with Kubernetes' extension as Helm has it."""
    if isinstance(value, dict):
        plain = {key: _plain(part) for key, part in value.items() if key not in ("title", "default")}
        return plain | ({"type": ["integer", "string"]} if plain.pop(INT_OR_STRING, False) else {})
    return [_plain(item) for item in value] if isinstance(value, list) else value


def test_platform_values_have_the_schema_of_the_platform_file(pytestconfig: Any) -> None:
    schema = json.loads(PATH.read_text())
    platform, definitions = platform_schema()
    if pytestconfig.getoption("--update-golden"):
        schema["properties"]["platform"], schema["$defs"] = platform, definitions
        PATH.write_text(json.dumps(schema, indent=2) + "\n")
    assert schema["properties"]["platform"] == platform, "run `make golden`"
    assert schema["$defs"] == definitions, "run `make golden`"


@pytest.mark.parametrize(("after", "lead"), [(60, 1200), ("1m", "20m")])
def test_durations_of_the_platform_are_seconds_or_have_units(after: Any, lead: Any, render: Any) -> None:
    values = {
        "accelerators": {"h100": {"nodeLostAfter": after}},
        "maintenance": {"startTimes": ["example.com/start"], "leadTime": lead},
    }
    [content] = [
        each["data"]["platform.yaml"]
        for each in render({"platform": values})
        if each["kind"] == "ConfigMap" and "platform.yaml" in each["data"]
    ]
    platform = parse_platform(yaml.safe_load(content), "platform")
    assert platform.accelerators["h100"].node_lost_after == 60
    assert platform.maintenance.lead_time == 1200


@pytest.mark.parametrize("lead", [0, 1.5, "15", "15 minutes", True])
def test_what_is_no_duration_is_refused_by_helm(lead: Any, render: Any) -> None:
    with pytest.raises(ValueError, match="leadTime"):
        render({"platform": {"maintenance": {"leadTime": lead}}})
