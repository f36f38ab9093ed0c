"""What people type and write wrong first: each answer names the value and what to write instead."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from megatron_operator.cli import kubectl
from megatron_operator.cli.documents import read_recipes
from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.main import cli

LLAMA = ("--recipe", "llama3-8b", "--gpus", "8", "--accelerator", "h100-sxm")
RECIPE = {
    "apiVersion": "megatron.training/v1beta1",
    "kind": "MegatronRecipe",
    "metadata": {"name": "mine"},
    "spec": {"recipe": "llama3-8b", "accelerator": {"count": 8}, "data": {"mockData": True}},
}


def megatron(*words: str) -> Result:
    return CliRunner().invoke(cli, words, catch_exceptions=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_recipes_without_a_subcommand_lists_them() -> None:
    assert megatron("recipes").stdout == megatron("recipes", "list").stdout


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("pln",), "no command 'pln'; did you mean plan?"),
        (("list",), "no command 'list'; it has: recipes, recommend, init, plan"),
        (("plan", "recipe.yaml"), "a recipe file is given with -f FILE"),
        (("plan", *LLAMA, "--price", "2.5USD"), "'2.5USD' is not a number; set for example 2.5"),
        (("plan", *LLAMA, "--price", "-1"), "-1 is not between 0 and 1000000"),
        (("plan", "--recipe", "llama3-8b", "--gpus", "32k"), "'32k' is not an integer; write a whole"),
        (("plan", *LLAMA, "--set", "training.lr="), "invalid --set training.lr=; use PATH=VALUE"),
        (
            ("plan", "--recipe", "meta-llama/Llama-3.1-8B-Instruct", "--gpus", "8"),
            "no recipe 'meta-llama/Llama-3.1-8B-Instruct'; did you mean llama3.1-8b? ",
        ),
        (("init", "gemini", "--gpus", "8"), "MODEL: the catalog has no pretrain recipe like 'gemini'"),
    ],
)
def test_a_wrong_command_line_is_answered_with_the_right_one(words: tuple[str, ...], answer: str) -> None:
    result = megatron(*words)
    assert result.exit_code == 2
    assert answer in result.stderr


@pytest.mark.parametrize(
    ("document", "answer"),
    [
        ({"kind": "MegatronRecipe", "spec": {}}, "apiVersion: is required; set megatron.training/v1beta1"),
        (RECIPE | {"metadata": {}}, "metadata.name: is required; name the run, for example metadata: {name:"),
        (RECIPE | {"metadata": {"name": "My_Run"}}, "metadata.name: invalid name 'My_Run'; use the name of"),
        ({"platform": {}}, "recipe.yaml: has no MegatronRecipe (found: an object without kind); give a"),
    ],
)
def test_a_file_that_kubectl_would_refuse_is_not_valid(
    document: dict[str, object], answer: str, folder: Path
) -> None:
    (folder / "recipe.yaml").write_text(yaml.safe_dump(document))
    for command in ("validate", "plan"):
        result = megatron(command, "-f", "recipe.yaml")
        assert result.exit_code == 2
        assert result.stderr.startswith(answer)


def test_a_name_that_the_api_server_generates_is_one(folder: Path) -> None:
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE | {"metadata": {"generateName": "mine-"}}))
    assert megatron("validate", "-f", "recipe.yaml").exit_code == 0


def test_a_recipe_given_as_platform_is_named_as_such(folder: Path) -> None:
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    result = megatron("plan", *LLAMA, "--platform", "recipe.yaml")
    assert result.exit_code == 2
    assert result.stderr.startswith("recipe.yaml: is a MegatronRecipe, not a platform file; give the content")


def test_errors_of_several_recipes_of_a_file_name_theirs(folder: Path) -> None:
    spec = RECIPE["spec"]
    assert isinstance(spec, dict)
    wrong = RECIPE | {"metadata": {"name": "wrong"}, "spec": spec | {"accelerator": {"count": 12}}}
    unnamed = RECIPE | {"metadata": None}
    (folder / "recipes.yaml").write_text(yaml.safe_dump_all([RECIPE, wrong, unnamed]))
    lines = megatron("validate", "-f", "recipes.yaml").stderr.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        ["wrong", "spec.accelerator.count"],
        ["recipe 3", "metadata.name"],
    ]
    document = json.loads(megatron("validate", "-f", "recipes.yaml", "-o", "json").stdout)
    assert [error["field"] for error in document["errors"]] == [
        "wrong: spec.accelerator.count",
        "recipe 3: metadata.name",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("--model", "llama3-8b", "--gpus", "32", "--accelerator", "h100-sxm"),
        ("--model", "meta-llama/Llama-3.1-8B", "--gpus", "8", "--mode", "lora"),
        ("--model", "Qwen/Qwen3-8B", "--gpus", "8", "--mode", "sft"),
        ("--model", "qwen3-8b", "--gpus", "64", "--mode", "sft"),
        ("--model", "qwen3-8b", "--gpus", "8", "--mode", "sft", "--seq-length", "4096"),
        ("--model", "llama3-8b", "--gpus", "16", "--seq-length", "65536"),
        ("--model", "gemma3-1b", "--gpus", "8"),
    ],
)
def test_the_command_that_recommend_ends_with_succeeds(words: tuple[str, ...], folder: Path) -> None:
    [best, *_] = json.loads(megatron("recommend", *words, "-o", "json").stdout)
    following = best["next"].split()[1:]
    assert megatron(*following).exit_code == 0
    if following[0] == "init":
        assert megatron("validate", "-f", "recipe.yaml").exit_code == 0
        assert (folder / "recipe.yaml").exists()


def test_a_recommended_run_of_years_has_the_count_that_makes_it_a_month() -> None:
    words = ("--model", "llama3-8b", "--gpus", "16", "--seq-length", "131072", "--accelerator", "h100-sxm")
    printed = megatron("recommend", *words).stdout
    assert " years for its " in printed
    assert "for 30 days take about " in printed


@pytest.mark.parametrize("recipe", ["qwen3-8b-sft", "llama3.1-8b-lora", "llama3-8b"])
def test_a_new_recipe_does_not_save_more_often_than_every_half_hour_or_at_the_end(recipe: str) -> None:
    text = megatron("init", recipe, "--gpus", "8", "--accelerator", "h100-sxm").stdout
    spec = yaml.safe_load(text)["spec"]
    [best, *_] = json.loads(megatron("recommend", "--model", recipe, "--gpus", "8", *mode(recipe)).stdout)
    plan = best["plan"]
    interval, step = spec["checkpoint"]["saveInterval"], plan["expected"]["stepSeconds"]
    assert interval == plan["trainIters"] or 600 <= interval * step <= 1800


def mode(recipe: str) -> tuple[str, ...]:
    kind = recipe.rpartition("-")[2]
    return ("-o", "json", *(("--mode", kind) if kind in ("sft", "lora") else ()))


def test_an_api_server_that_does_not_answer_is_no_matter_of_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "kubectl"
    message = "The connection to the server localhost:8080 was refused"
    program.write_text(f"#!/bin/sh\necho '{message}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(CommandError, match="choose the cluster with --context or --kubeconfig"):
        kubectl.Kubectl(None, None, None).recipe("mine")


@pytest.mark.parametrize(
    ("words", "mode"), [("peft", "lora"), ("PEFT", "lora"), ("finetune", "sft"), ("pretraining", "pretrain")]
)
def test_other_names_of_a_mode_are_understood(words: str, mode: str) -> None:
    done = megatron("recommend", "--model", "llama3-8b", "--gpus", "8", "--mode", words, "-o", "json")
    assert done.exit_code == 0
    assert done.stderr == f"--mode {words}: called {mode} here\n"
    same = megatron("recommend", "--model", "llama3-8b", "--gpus", "8", "--mode", mode, "-o", "json")
    assert done.stdout == same.stdout


def test_a_size_of_which_the_operator_starts_nothing_is_an_error_with_the_nearest() -> None:
    done = megatron("recommend", "--model", "56b", "--gpus", "8")
    assert done.exit_code == 2
    assert done.stdout.startswith("The operator starts no pretrain recipe for 56b on 8 GPUs; it starts ")
    assert "Next: megatron args --recipe nemotron-h-56b --gpus 8" in done.stdout
    named = megatron("recommend", "--model", "nemotron-h-56b", "--gpus", "8")
    assert (named.exit_code, "Nearest" in named.stdout) == (0, False)


@pytest.mark.parametrize("model", ["70b", "llama3-70b"])
def test_init_names_what_fits_instead(model: str) -> None:
    done = megatron("init", model, "--gpus", "8")
    assert (done.exit_code, done.stdout) == (2, "")
    take = "take llama3-70b on 16, or llama3-70b-lora on 8 (--mode lora), or llama3-8b on 8"
    assert done.stderr.splitlines()[-1].endswith(take)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("- a list", "has no MegatronRecipe (found: a list); give a recipe file"),
        ("only text", "has no MegatronRecipe (found: text); give a recipe file"),
        (
            "spec:\n\trecipe: x",
            "invalid YAML in line 2: no value begins with this character; indent with spaces",
        ),
        (f"{yaml.safe_dump(RECIPE)}---\n{yaml.safe_dump(RECIPE)}", "has two recipes 'mine' in one namespace"),
    ],
)
def test_files_that_are_no_recipes_are_refused_in_words(folder: Path, text: str, answer: str) -> None:
    (folder / "odd.yaml").write_text(text)
    done = megatron("validate", "-f", "odd.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"odd.yaml: {answer}")


def test_recipes_of_the_same_name_in_other_namespaces_are_two_objects(folder: Path) -> None:
    other = RECIPE | {"metadata": {"name": "mine", "namespace": "research"}}
    (folder / "two.yaml").write_text(f"{yaml.safe_dump(RECIPE)}---\n{yaml.safe_dump(other)}")
    assert megatron("validate", "-f", "two.yaml").exit_code == 0


def test_standard_input_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(cli, ["validate", "-f", "-"], input="", catch_exceptions=False)
    assert done.stderr == "standard input: has no MegatronRecipe (found: nothing); give a recipe file\n"
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(CommandError, match="is closed"):
        read_recipes(Path("-"))


def test_a_name_in_capital_letters_gets_a_suggestion() -> None:
    for words in (("recipes", "show"), ("init",)):
        done = megatron(*words, "LLAMA3-8B")
        assert done.exit_code == 2
        assert "the catalog has no recipe 'LLAMA3-8B'; did you mean llama3-8b" in done.stderr
        assert "set model and training" not in done.stderr


def test_an_empty_accelerator_is_not_the_default_one() -> None:
    done = megatron("plan", "--recipe", "llama3-8b", "--gpus", "8", "--accelerator", "")
    assert done.exit_code == 2
    assert "spec.accelerator.type: the platform has no accelerator ''; use one of" in done.stderr


def test_init_into_a_directory_asks_for_a_file(folder: Path) -> None:
    done = megatron("init", "llama3-8b", "-o", str(folder))
    assert (done.exit_code, done.stderr) == (2, f"--output {folder}: is a directory; name a file in it\n")


def test_a_catalog_directory_without_files_causes_a_warning(folder: Path) -> None:
    done = megatron("plan", *LLAMA, "--catalog", str(folder))
    assert done.exit_code == 0
    assert "has no YAML files" in done.stderr


def test_what_is_published_for_shorter_sequences_is_no_hint_for_longer_ones() -> None:
    done = megatron("recommend", "--model", "llama3-8b", "--gpus", "8", "--seq-length", "100000000")
    assert done.exit_code == 2
    assert "published" not in done.stdout.partition("RUNNERS-UP")[0]


@pytest.mark.parametrize("source", ["datasetRoot=chats", "blend=[{path: text}]", "prepare.source=text"])
def test_a_data_source_of_set_replaces_the_random_tokens_of_a_recipe_by_name(source: str) -> None:
    volume = ("--set", "data.volume.claimName=corpus")
    printed = megatron("validate", *LLAMA, *volume, "--set", f"data.{source}").stderr
    assert "more than once" not in printed
