"""`megatron explain`: every field of the generated reference, and suggestions for other names."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from megatron_operator.api.platform import AcceleratorProfile, PlatformConfig
from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.field_reference import fields, find
from megatron_operator.cli.main import cli
from megatron_operator.planner.checks.passthrough import megatron_flags, passthrough_errors

PAGE = Path(__file__).parents[3] / "docs" / "recipe.md"


def explain(*words: str, columns: int | None = None) -> Result:
    env = {"COLUMNS": None if columns is None else str(columns)}
    return CliRunner().invoke(cli, ["explain", *words], env=env, catch_exceptions=False)


def sections() -> dict[str, list[str]]:
    """Path of each section of docs/recipe.md -> the names of its fields."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        path = section.splitlines()[0]
        if path.startswith(("spec", "status")):
            found[path] = re.findall(r"^\| `(\w+)`", section, re.MULTILINE)
    return found


@pytest.mark.parametrize(("path", "names"), sections().items())
def test_a_section_of_the_reference_is_printed_with_its_fields(path: str, names: list[str]) -> None:
    result = explain(path, "-o", "json")
    assert result.exit_code == 0, result.output
    [found] = json.loads(result.stdout)
    assert [each["path"] for each in found["fields"]] == [
        next(f"{path}.{name}{mark}" for mark in ("", "[]", "{}") if f"{path}.{name}{mark}" in known())
        for name in names
    ]


def known() -> set[str]:
    return {field.path for field in fields()}


def test_every_field_can_be_asked_for_by_its_path() -> None:
    plain = {re.sub(r"[\[\]{}]", "", path) for path in known()}
    assert len(plain) == len(known())
    assert all(field.kind for field in fields())


def test_the_fields_of_the_platform_file_are_there() -> None:
    fields_of = {field.path for field in fields()}
    for name in PlatformConfig.model_json_schema(by_alias=True)["properties"]:
        assert fields_of & {f"platform.{name}", f"platform.{name}[]", f"platform.{name}{{}}"}
    for name in AcceleratorProfile.model_json_schema(by_alias=True)["properties"]:
        inside = f"platform.accelerators{{}}.{name}"
        assert fields_of & {inside, f"{inside}[]", f"{inside}{{}}"}


def test_a_field_is_printed_with_type_limits_meaning_and_flag() -> None:
    assert explain("globalBatchSize").stdout.splitlines() == [
        "spec.training.globalBatchSize",
        "  integer, at least 1, at most 100000000",
        "  Samples per iteration over all ranks.",
        "  Megatron's flag: --global-batch-size",
        "  refused if: N is not divisible by microBatchSize N; set a multiple of microBatchSize x DP",
    ]


def test_a_flag_of_megatron_is_answered_with_its_field() -> None:
    assert explain("micro-batch-size").stdout == explain("spec.training.microBatchSize").stdout


def test_rules_with_other_fields_are_printed_with_their_fix() -> None:
    printed = explain("spec.training.stepBatchSizeSchedule").stdout
    rules = json.loads(explain("spec.recipe", "-o", "json").stdout)[0]["rules"]
    assert rules == [
        "is required unless model and training are both set; name a catalog entry (megatron recipes list), "
        "or set model and training in full"
    ]
    assert "refused if: is required" in explain("spec.recipe").stdout
    assert "Megatron's flag: --step-batch-size-schedule" in printed


@pytest.mark.parametrize(
    "path",
    [
        "platform.accelerators.h100-sxm.shmSize",
        "platform.accelerators{}.shmSize",
        "accelerators.shmSize",
        "PLATFORM.accelerators.shmsize",
    ],
)
def test_a_key_of_a_map_and_its_mark_may_be_written_or_left_out(path: str) -> None:
    [first, *_] = explain(path).stdout.splitlines()
    assert first == "platform.accelerators{}.shmSize"


def test_a_name_of_several_fields_prints_all_of_them() -> None:
    printed = explain("saveInterval").stdout.splitlines()
    assert {"spec.checkpoint.saveInterval", "spec.checkpoint.local.saveInterval"} <= set(printed)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("path", ["spec", "spec.model", "spec.training", "status.recovery", "platform"])
def test_the_reference_fits_the_terminal(path: str, columns: int) -> None:
    lines = explain(path, columns=columns).stdout.splitlines()
    assert len(lines) > 5
    assert max(map(len, lines)) <= columns


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("spec.training.globalBatchSise", "did you mean spec.training.globalBatchSize?"),
        ("learning_rate", "set spec.training.lr"),
        ("num_train_epochs", "set spec.training.trainIters: epochs x samples / globalBatchSize"),
        ("lora_r", "set spec.peft.dim"),
        ("peft.lora_r", "set spec.peft.dim"),
        ("save_total_limit", "set spec.checkpoint.keep"),
        ("log-throughput", "set the flag of Megatron in spec.megatronArgs: log-throughput"),
        ("tensor", "did you mean spec.tracking.tensorboard or spec.parallelism.tensorModelParallelSize or "),
        ("platform.acelerators", "did you mean platform.accelerators{}"),
        ("zzzzzz", "see megatron explain spec"),
    ],
)
def test_an_unknown_name_is_answered_with_the_closest_ones(name: str, advice: str) -> None:
    refused = explain(name)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"{name}: unknown field of recipe, status and platform file; ")
    assert advice in refused.stderr


@pytest.mark.parametrize(
    ("flag", "advice"),
    [
        ("save-interval", "save-interval: is set by spec.checkpoint.saveInterval; set "),
        ("exit-interval", "exit-interval: is reserved for the operator; leave it out"),
        ("skip-train", "skip-train: trains nothing, and the run would be reported complete; leave it out"),
        ("use-flash-attn", "leave it out: training.attentionBackend is auto"),
    ],
)
def test_a_flag_of_megatron_that_megatron_args_refuses_is_not_advised(flag: str, advice: str) -> None:
    refused = explain(flag)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert advice in refused.stderr


def test_only_flags_that_megatron_args_takes_are_advised_for_it() -> None:
    values: dict[str, Any] = {"switch": True, "value": "1", "values": ["1"]}
    typed = {field.flag for field in fields()}
    for flag, kind in megatron_flags().items():
        try:
            assert {field.flag for field in find(flag)} <= {flag, None}
        except CommandError as error:
            [refusal] = error.errors
            assert flag not in typed
            if "spec.megatronArgs" in refusal.fix:
                [*_, problem] = [None, *passthrough_errors({flag: values[kind]})]
                assert problem is None or problem.message.startswith("'1' is none of its values")


def test_a_name_that_only_the_status_has_is_printed_with_the_setting_of_that_name() -> None:
    printed = explain("learningRate").stdout
    assert printed.startswith("status.progress.learningRate\n")
    assert "In a recipe: set spec.training.lr" in printed


def test_a_field_of_the_named_section_comes_before_names_of_other_programs() -> None:
    assert "did you mean spec.profile.ranks" in explain("profile.rank").output
    assert "set spec.peft.dim" in explain("peft.rank").output
