"""`megatron init` writes recipes that the operator admits, for every recipe that it can start."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from megatron_operator import catalog
from megatron_operator.cli.main import cli

RUNNABLE = [entry.name for entry in catalog.load() if entry.starts]
ON_LATENTS = {entry.name for entry in catalog.load() if entry.starts and entry.reads_latents}
FINE_TUNED = {entry.name for entry in catalog.load() if entry.starts and entry.fine_tunes} - ON_LATENTS


def megatron(*words: str) -> Result:
    return CliRunner().invoke(cli, words, catch_exceptions=False)


def with_all_settings(text: str) -> str:
    """The recipe with every setting behind a # switched on."""
    return re.sub(r"^( *)#(?=\w|  \w)", r"\1", text.replace("    mockData: true\n", ""), flags=re.MULTILINE)


def plan(file: Path) -> dict[str, object]:
    result = megatron("plan", "-f", str(file), "-o", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("name", RUNNABLE)
def test_a_new_recipe_is_valid_as_written_and_with_every_setting_switched_on(
    name: str, tmp_path: Path
) -> None:
    file, full = tmp_path / "recipe.yaml", tmp_path / "full.yaml"
    written = megatron("init", name, "-o", str(file))
    assert (written.exit_code, written.stdout) == (0, "")
    full.write_text(with_all_settings(file.read_text()))
    settings = yaml.safe_load(full.read_text())["spec"]
    assert {"training", "parallelism", "recovery"} <= settings.keys()
    data = (
        {"volume", "sources", "split", "maxEpochs"}
        if name in FINE_TUNED
        else {"volume", "datasetRoot"}
        if name in ON_LATENTS
        else {"volume", "tokenizer", "blend"}
    )
    assert data == settings["data"].keys()
    for each in (file, full):
        valid = megatron("validate", "-f", str(each))
        assert (valid.exit_code, valid.stderr) == (0, ""), valid.output


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3", "gpt-oss-20b"])
def test_the_layout_that_it_names_is_the_planned_one(name: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(megatron("init", name).stdout)
    planned = plan(file)
    sizes = yaml.safe_load(with_all_settings(file.read_text()))["spec"]["parallelism"]
    assert sizes
    assert {size: planned[size] for size in sizes} == sizes


def test_a_recipe_of_adapters_asks_for_no_folder_that_it_does_not_read() -> None:
    """The folder of the export is commented out."""
    text = megatron("init", "llama3.1-8b-lora", "--accelerator", "h100-sxm").stdout
    assert "    # An existing claim, mounted at /data, with the folder of the model:\n    volume:" in text
    assert "both folders" not in text


def test_the_count_and_the_accelerator_of_the_command_line_are_kept() -> None:
    text = megatron("init", "llama3-8b", "--gpus", "16", "--accelerator", "B200").stdout
    assert yaml.safe_load(text)["spec"]["accelerator"] == {"type": "b200", "count": 16}


def test_the_count_is_the_smallest_published_one_of_the_accelerator() -> None:
    text = megatron("init", "deepseek-v3", "--accelerator", "h100-sxm").stdout
    assert yaml.safe_load(text)["spec"]["accelerator"] == {"type": "h100-sxm", "count": 256}


def test_without_a_published_layout_the_smallest_number_of_nodes_that_fits_is_taken() -> None:
    text = megatron("init", "llama3-70b", "--accelerator", "h200").stdout
    published = {layout.count for layout in catalog.load().get("llama3-70b").layouts}
    count = yaml.safe_load(text)["spec"]["accelerator"]["count"]
    assert count in published
    text = megatron("init", "llama3-70b-fp8", "--accelerator", "b200").stdout
    assert yaml.safe_load(text)["spec"]["accelerator"]["count"] % 8 == 0


def test_a_function_of_megatron_bridge_is_kept_as_the_recipe() -> None:
    entry = catalog.load().get("llama3-8b")
    function = str(entry.functions[0].function)
    assert yaml.safe_load(megatron("init", function).stdout)["spec"]["recipe"] == function


def test_without_a_model_the_recommended_recipe_is_taken() -> None:
    best = json.loads(megatron("recommend", "--gpus", "8", "-o", "json").stdout)[0]["name"]
    assert yaml.safe_load(megatron("init", "--gpus", "8").stdout)["spec"]["recipe"] == best


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--gpus: is not given, and no MODEL is named; give --gpus N to have a recipe recommended"),
        (("lama3-8b",), "MODEL: the catalog has no recipe 'lama3-8b'; did you mean llama3-8b"),
        (("llama3-8b", "--mode", "sft"), "--gpus: is not given, and llama3-8b is not for sft"),
        (("llama3-70b", "--gpus", "1"), "GiB"),
        (("llama3-8b", "--gpus", "12"), "spec.accelerator.count: 12 is not a multiple of the 8"),
        (("llama3-8b", "--accelerator", "h9000"), "--accelerator: the platform has no accelerator 'h9000'"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_before_a_file_is_written(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "recipe.yaml"
    refused = megatron("init", *words, "-o", str(file))
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert not file.exists()


def test_a_batch_that_suits_the_count_replaces_the_catalogs(tmp_path: Path) -> None:
    """Layouts that divide 125 samples have half the speed of those that divide 1,000, as in `recommend`."""
    file, full = tmp_path / "recipe.yaml", tmp_path / "full.yaml"
    written = megatron("init", "llama3-8b", "--gpus", "1000", "-o", str(file))
    assert written.exit_code == 0, written.output
    assert yaml.safe_load(file.read_text())["spec"]["training"] == {"globalBatchSize": 1000}
    full.write_text(with_all_settings(file.read_text()))
    assert yaml.safe_load(full.read_text())["spec"]["training"]["seqLength"] == 8192
    for each in (file, full):
        valid = megatron("validate", "-f", str(each))
        assert (valid.exit_code, valid.stderr) == (0, ""), valid.output


@pytest.mark.parametrize("many", ["7b", "vlm"])
def test_a_size_or_kind_needs_a_count(many: str) -> None:
    refused = megatron("init", many)
    message = f"--gpus: is not given, and {many} stands for many models; give --gpus N to have a recipe"
    assert (refused.exit_code, refused.stderr.startswith(message)) == (2, True)


def test_an_existing_file_is_replaced_only_with_force(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("mine\n")
    refused = megatron("init", "llama3-8b", "-o", str(file))
    assert (refused.exit_code, file.read_text()) == (2, "mine\n")
    assert refused.stderr == (
        f"--output {file}: exists already; choose another name, or replace it with --force\n"
    )
    assert megatron("init", "llama3-8b", "-o", str(file), "--force").exit_code == 0
    assert yaml.safe_load(file.read_text())["kind"] == "MegatronRecipe"


def test_the_command_that_is_printed_as_the_next_one_is_accepted(tmp_path: Path) -> None:
    folder = tmp_path / "my files"
    additional = folder / "catalog"
    additional.mkdir(parents=True)
    entry = {"extends": "tiny-gpt", "description": "mine", "source": "mine"}
    (additional / "mine.yaml").write_text(yaml.safe_dump({"family": "mine", "entries": {"my-model": entry}}))
    written = megatron("init", "my-model", "--catalog", str(additional), "-o", str(folder / "recipe.yaml"))
    assert written.exit_code == 0, written.stderr
    program, *words = shlex.split(written.stderr.partition("next: ")[2])
    assert (program, megatron(*words).exit_code) == ("megatron", 0)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "missing" / "recipe.yaml"
    refused = megatron("init", "llama3-8b", "-o", str(file))
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"--output {file}: no such file or directory; ")


@pytest.mark.parametrize(("gpus", "more"), [("12", "16"), ("20", "24")])
def test_a_count_that_is_not_of_whole_nodes_is_no_lack_of_memory(gpus: str, more: str) -> None:
    result = megatron("init", "llama3-8b", "--gpus", gpus)
    assert result.exit_code == 2
    assert f"llama3-8b: cannot run on {gpus}; take llama3-8b on {more}" in result.stderr
    assert "does not fit" not in result.stderr


def test_a_batch_that_no_layout_divides_is_replaced_by_the_fastest_of_the_nearest() -> None:
    text = megatron("init", "llama3-70b", "--gpus", "1000").stdout
    assert "globalBatchSize: 1000  # no layout on this count divides the catalog's 1024" in text
