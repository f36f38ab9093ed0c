"""Commands that work without a cluster."""

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner, Result
from megatron_operator.cli.completion import proposals
from megatron_operator.cli.main import cli

LLAMA = ("--recipe", "llama3-8b", "--gpus", "8", "--accelerator", "h100-sxm")

RECIPE = """\
apiVersion: megatron.training/v1beta1
kind: MegatronRecipe
metadata: {name: mine}
spec:
  recipe: llama3-8b
  accelerator: {type: h100-sxm, count: 16}
  training: {lr: 3e-4}
  data: {mockData: true}
"""


def megatron(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, words, input=stdin, catch_exceptions=False)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return path


def test_plan_as_json_has_the_field_names_of_the_status() -> None:
    plan = json.loads(megatron("plan", *LLAMA, "-o", "json").stdout)
    assert {
        "worldSize", "nodes", "tensorModelParallelSize", "pipelineModelParallelSize",
        "virtualPipelineModelParallelSize", "contextParallelSize", "expertModelParallelSize",
        "expertTensorParallelSize", "dataParallelSize", "expertDataParallelSize", "sequenceParallel",
        "microBatchSize", "globalBatchSize", "gradientAccumulation", "parameters", "activeParameters",
        "flopsPerToken", "memoryPerGpu", "expected", "communication", "notes",
    } <= plan.keys()  # fmt: skip
    assert plan["parameters"] == 8_030_261_248
    assert set(plan["memoryPerGpu"]) == {
        "weights", "gradients", "optimizer", "activations", "other", "total", "capacity"
    }  # fmt: skip


def test_plan_prints_a_table_for_people() -> None:
    printed = megatron("plan", *LLAMA).stdout
    assert "llama3-8b on 8 x h100-sxm" in printed
    assert "GiB" in printed


def test_plan_prints_what_each_group_communicates_over_which_level(tmp_path: Path) -> None:
    platform = tmp_path / "platform.yaml"
    racks = {"accelerators": {"h100-sxm": {"topology": ["rack"], "requiredTopology": "rack"}}}
    platform.write_text(json.dumps(racks))
    arguments = ("--recipe", "llama3-70b", "--gpus", "64", "--platform", str(platform))
    lines = megatron("plan", *arguments).stdout.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("  groups "))
    found = [re.sub(r"[0-9]+\.[0-9]+|[0-9]+%", "_", line) for line in lines[first : first + 6]]
    assert found == [
        "  groups      TP 4 (node): _ s per step, _ s exposed (_)",
        "              CP 2 (node): _ s per step, _ s exposed (_)",
        "              DP 4 (rack): _ s per step, _ s exposed (_)",
        "                 out of each node: _ GiB per GPU, _ s",
        "              PP 4 (rack): _ s per step, _ s exposed (_)",
        "                 out of each node: _ GiB per GPU, _ s",
    ]
    assert all(len(line) <= 80 for line in found)


def test_set_overrides_a_field_of_the_file(recipe: Path) -> None:
    plan = megatron(
        "plan",
        "-f",
        str(recipe),
        "--set",
        "parallelism.tensorModelParallelSize=2",
        "--gpus",
        "32",
        "-o",
        "json",
    )
    assert json.loads(plan.stdout)["tensorModelParallelSize"] == 2
    assert json.loads(plan.stdout)["worldSize"] == 32


def test_set_takes_items_of_a_list_one_after_the_other() -> None:
    items = ("--set=data.blend[0].path=a", "--set=data.blend[0].weight=0.3", "--set=data.blend[1].path=b")
    rest = ("--set=data.blend[1].weight=0.7", "--set=data.volume.claimName=corpus")
    words = json.loads(megatron("args", *LLAMA, *items, *rest, "-o", "json").stdout)
    assert words[words.index("--data-path") + 1 :][:4] == ["0.3", "/data/a", "0.7", "/data/b"]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("data.blend[1].path", "its list has 0 items; set item 0 first"),
        ("data[0].path", "has an index for what is not a list; leave it out"),
        (
            "data.blend[x].path",
            "'blend[x]' is not a field; write for example data.blend[0].path=/data/corpus",
        ),
        ("data..path", "'' is not a field; write"),
    ],
)
def test_a_path_of_set_that_leads_nowhere_is_refused(path: str, problem: str) -> None:
    done = megatron("plan", *LLAMA, f"--set={path}=a")
    assert done.exit_code == 2
    assert f"spec.{path}: {problem}" in done.output


def test_numbers_are_parsed_as_kubectl_parses_them(recipe: Path) -> None:
    words = json.loads(megatron("args", "-f", str(recipe), "-o", "json").stdout)
    assert words[words.index("--lr") + 1] == "0.0003"


def test_a_recipe_is_read_from_standard_input() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from megatron_operator.cli.main import main; main()", "validate", "-f", "-"],
        input=RECIPE, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("mine: valid on 16 x h100-sxm")


def test_args_prints_a_shell_command() -> None:
    lines = megatron("args", *LLAMA).stdout.splitlines()
    assert lines[0] == "--tensor-model-parallel-size 1 \\"
    assert not lines[-1].endswith("\\")


def test_render_prints_the_job(recipe: Path) -> None:
    kinds = [m["kind"] for m in yaml.safe_load_all(megatron("render", "-f", str(recipe)).stdout)]
    assert kinds == ["PersistentVolumeClaim", "PyTorchJob"]


def test_a_platform_file_defines_the_accelerators(recipe: Path, tmp_path: Path) -> None:
    platform = tmp_path / "platform.yaml"
    platform.write_text("accelerators: {a100-80: {perNode: 8}}\nimage: trainer:1\n")
    result = megatron("validate", "-f", str(recipe), "--platform", str(platform))
    assert result.exit_code == 2
    assert "the platform has no accelerator 'h100-sxm'" in result.stderr


def test_recipes_as_json_have_all_fields() -> None:
    listed = json.loads(megatron("recipes", "list", "-o", "json").stdout)
    assert {"llama3-8b", "gpt3-175b", "tiny-gpt"} <= {entry["name"] for entry in listed}
    assert all({"name", "family", "engine", "modes", "layouts", "source"} <= entry.keys() for entry in listed)


def test_a_recipe_is_shown_with_its_source() -> None:
    shown = yaml.safe_load(megatron("recipes", "show", "llama3-8b").stdout)
    assert shown["model"]["numLayers"] == 32
    assert shown["source"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plan",), "give either -f FILE or --recipe NAME"),
        (("plan", "-f", "x.yaml", "--recipe", "llama3-8b"), "give either -f FILE or --recipe NAME"),
        (("plan", "-f", "/nowhere/recipe.yaml"), "/nowhere/recipe.yaml: no such file or directory"),
        (("plan", *LLAMA, "--set", "training.lr"), "use PATH=VALUE"),
        (("plan", *LLAMA, "--set", "recipe.name=x"), "spec.recipe.name: its parent is not an object"),
        (("plan", "--recipe", "llama3-8b"), "--gpus: is required with --recipe"),
        (("recipes", "show", "nothing-like-it"), "the catalog has no recipe 'nothing-like-it'"),
    ],
)  # fmt: skip
def test_errors_are_printed_on_standard_error_with_exit_code_2(words: tuple[str, ...], message: str) -> None:
    result = megatron(*words)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("words", "field", "message"),
    [
        (("plan", "-o", "json"), "command line", "give either -f FILE or --recipe NAME"),
        (("plan", *LLAMA, "--gpus", "many", "-ojson"), "--gpus", "'many' is not an integer; write"),
        (("recommend", "--output=json"), "--gpus", "Missing option"),
        (("plna", "--output", "json"), "command line", "no command 'plna'; did you mean plan?"),
        (("plan", "--recipe", "llama3-8b", "-o", "json"), "--gpus", "is required"),
    ],
)
def test_errors_are_printed_as_json_if_json_is_requested(
    words: tuple[str, ...], field: str, message: str
) -> None:
    result = megatron(*words)
    assert result.exit_code == 2
    [error] = json.loads(result.stdout)["errors"]
    assert error["field"] == field
    assert message in error["message"]
    assert error["fix"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [\n", "invalid YAML in line 2"),
        (f"{RECIPE}  suspend: false\n  suspend: true\n", "invalid YAML in line 10: duplicate key 'suspend'"),
        ("kind: Pod", "has no MegatronRecipe (found: Pod); give a recipe file"),
        ("", "has no MegatronRecipe (found: nothing); give a recipe file"),
        ("kind: MegatronRecipe\napiVersion: megatron.training/v2\n", "set megatron.training/v1beta1"),
        ("kind: MegatronRecipe\napiVersion: megatron.training/v1beta1\n", "spec: is required"),
        (
            f"{RECIPE}---\n{RECIPE.replace('mine', 'other')}",
            "has 2 recipes; give a file with one, or use validate",
        ),
    ],
)
def test_a_file_without_a_valid_recipe_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    result = megatron("plan", "-f", str(path))
    assert result.exit_code == 2
    assert message in result.stderr


def test_plan_shows_alternatives() -> None:
    plan = json.loads(megatron("plan", *LLAMA, "-o", "json").stdout)
    assert {"tensorModelParallelSize", "expected", "memoryPerGpu", "reason"} <= plan["alternatives"][0].keys()
    assert "Other layouts:" in megatron("plan", *LLAMA).stdout


def test_recommend_prints_the_next_command() -> None:
    printed = megatron("recommend", "--model", "llama3-8b", "--gpus", "8", "--accelerator", "h100-sxm").stdout
    assert "Next: megatron plan --recipe llama3-8b --gpus 8 --accelerator h100-sxm" in printed
    best = json.loads(megatron("recommend", "--model", "llama3-8b", "--gpus", "8", "-o", "json").stdout)[0]
    assert (best["name"], best["runs"], best["published"]) == ("llama3-8b", True, True)


def test_diff_compares_with_the_published_command_line() -> None:
    same = megatron("diff", *LLAMA)
    assert (same.exit_code, same.stdout) == (0, "")
    assert same.stderr == "no flag differs from llama3-8b as published\n"
    changed = megatron("diff", *LLAMA, "--set", "training.lr=1e-4")
    assert changed.exit_code == 1
    assert changed.stdout.splitlines() == ["- --lr 0.0003", "+ --lr 0.0001"]


def test_diff_compares_with_a_running_job(recipe: Path, tmp_path: Path) -> None:
    job = next(
        m
        for m in yaml.safe_load_all(megatron("render", "-f", str(recipe)).stdout)
        if m["kind"] == "PyTorchJob"
    )
    running = tmp_path / "job.yaml"
    running.write_text(yaml.safe_dump(job))
    words = ("diff", "-f", str(recipe), "--running", str(running), "-o", "json")
    assert megatron(*words).exit_code == 0
    changed = megatron(*words, "--set", "training.trainIters=50000")
    assert {"flag": "--train-iters", "before": "100000", "after": "50000"} in json.loads(changed.stdout)[
        "flags"
    ]


def test_diff_rejects_a_file_that_is_not_a_job(recipe: Path) -> None:
    result = megatron("diff", "-f", str(recipe), "--running", str(recipe))
    assert result.exit_code == 2
    assert "is not the training job of a recipe" in result.stderr


def test_help_lists_every_command() -> None:
    printed = megatron("--help").stdout
    for name in ("recipes", "recommend", "plan", "validate", "args", "diff", "render", "completion"):
        assert name in printed
        assert megatron(name, "--help").exit_code == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    assert "_MEGATRON_COMPLETE" in megatron("completion", shell).stdout


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (("pl",), ["plan\tShow the layout of a run on its...", ":4"]),
        (("plan", "--recipe", "llama3-8b-f"), ["llama3-8b-fp8", ":4"]),
        (("plan", "--accelerator", "b30"), ["b300", ":4"]),
        (("recipes", "list", "--family", "mixt"), ["mixtral", ":4"]),
        (("plan", "-f", ""), [":0"]),
    ],
)
def test_completions_are_printed_for_kubectl(words: tuple[str, ...], completions: list[str]) -> None:
    *before, incomplete = words
    assert list(proposals(cli, before, incomplete)) == completions


def every_command() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), name)
        found += [(name, sub) for sub in getattr(command, "commands", ())] or [(name,)]
    return found


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_help_of_every_command_has_an_example(words: tuple[str, ...]) -> None:
    assert "  megatron " in megatron(*words, "--help").stdout.replace("<(", " ")


def test_help_imports_neither_models_nor_catalog() -> None:
    program = (
        "import sys; from megatron_operator.cli import main; "
        "main.cli(['--help'], standalone_mode=False); "
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('pydantic', 'yaml')))"
    )
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_plan_imports_no_cluster_library() -> None:
    program = (
        "import sys; from megatron_operator.cli import main; "
        "main.cli(['plan', '--recipe', 'llama3-8b', '--gpus', '8'], standalone_mode=False); "
        "print(sorted({m.split('.')[0] for m in sys.modules} "
        "& {'kopf', 'kubernetes', 'aiohttp', 'rich', 'importlib_metadata', 'jinja2'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["plan", "validate", "args", "render", "diff"])
def test_a_file_without_its_option_is_answered_with_the_option(command: str) -> None:
    result = megatron(command, "recipe.yaml")
    assert result.exit_code == 2
    assert "(recipe.yaml)" in result.output
    assert "-f FILE" in result.output


def test_a_surplus_word_of_a_command_without_files_is_not_answered_with_the_option() -> None:
    result = megatron("explain", "training.lr", "more")
    assert result.exit_code == 2
    assert "-f FILE" not in result.output


def test_an_accelerator_of_another_vendor_is_refused_with_the_reason() -> None:
    result = megatron("plan", "--recipe", "llama3-8b", "--gpus", "8", "--accelerator", "mi300x")
    assert result.exit_code == 2
    assert "spec.accelerator.type: 'mi300x' is not an NVIDIA GPU" in result.output
