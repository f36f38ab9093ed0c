"""Every YAML and command block of the pages is accepted by what it is for."""

import ast
import importlib.util
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result
from megatron_operator import catalog
from megatron_operator.cli.main import cli
from megatron_operator.controller.config_source import PLATFORM_KEY, parse_platform
from megatron_trainer.weights.command import make_parser

from tests.unit.docs.blocks import (
    NEEDS,
    NOT_COMMANDS,
    ROOT,
    Block,
    Command,
    blocks,
    commands,
    is_prose,
    is_tree,
    spans,
)

BLOCKS = list(blocks())
YAML = [block for block in BLOCKS if block.language == "yaml" and not is_prose(block)]
COMMANDS = [
    command
    for block in BLOCKS
    if block.language not in ("yaml", "python") and not is_prose(block)
    for command in commands(block)
]
REFUSED = {"megatron validate --recipe llama3-8b --gpus 12 --accelerator h100-sxm"}
"""Examples of the help that show a refusal."""
DIFFERENT = {"megatron diff --recipe deepseek_v3_pretrain_config --gpus 1024"}
"""Examples of the help that show differences, with exit code 1."""
OF_A_CLUSTER = ("status", "history", "ledger", "reshard", "logs", "support-bundle", "ui", "cluster")
VALUES = yaml.safe_load((ROOT / "charts" / "megatron-operator" / "values.yaml").read_text())


def first(page: str, key: str) -> str:
    """Text of the first YAML block of a page that has this key."""
    return next(b.text for b in YAML if b.page == ROOT / page and key in yaml.safe_load(b.text))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files that the pages name."""
    (tmp_path / "recipe.yaml").write_text(first("README.md", "spec"))
    (tmp_path / "platform.yaml").write_text(first("docs/platform.md", "platform"))
    (tmp_path / "values.yaml").write_text(first("docs/installation.md", "platform"))
    for name in ("examples", "charts", "operator", "trainer-image"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def megatron(words: list[str]) -> Result:
    return CliRunner().invoke(cli, words, prog_name="megatron", catch_exceptions=False)


def run_in(folder: Path, words: list[str]) -> Result:
    """Run a command; `init` writes the recipe itself."""
    if words[0] == "init":
        (folder / "recipe.yaml").unlink()
    return megatron(words)


def parse(words: list[str]) -> click.Context:
    """Parse a command line without running it. Raises UsageError."""
    context, rest = cli.make_context("megatron", words), words
    while isinstance(context.command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, command, rest = context.command.resolve_command(context, rest)
        assert command is not None, rest
        context = command.make_context(name, rest, parent=context)
    return context


@pytest.mark.parametrize("block", YAML, ids=lambda block: block.title)
def test_a_yaml_block_is_accepted(block: Block, folder: Path, render: Any) -> None:
    content = yaml.safe_load(block.text)
    if content.get("kind") == "MegatronRecipe":
        (folder / "recipe.yaml").write_text(block.text)
        platform = ["--platform", "values.yaml"] if "installation" in block.page.name else []
        if names_model_of_hub(content["spec"]):
            platform = ["--platform", "platform.yaml"]
        done = megatron(["validate", "-f", "recipe.yaml", *platform])
        assert done.exit_code == 0, done.output
    elif content.keys() <= VALUES.keys():
        objects = render(content)
        for text in (o["data"][PLATFORM_KEY] for o in objects if PLATFORM_KEY in o.get("data", {})):
            parse_platform(text, block.title)
        accepts_recipes_of(content.get("catalog", {}), folder)
    else:
        recipe = yaml.safe_load(first("README.md", "spec"))
        for section, fields in content.items():
            recipe["spec"][section] = recipe["spec"].get(section, {}) | fields
        (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        done = megatron(["validate", "-f", "recipe.yaml"])
        assert done.exit_code == 0, done.output


def names_model_of_hub(spec: dict[str, Any]) -> bool:
    """Whether the recipe needs a platform that opens a hub."""
    return "name" in spec.get("init", {}).get("from", {}).get("huggingFace", {})


def accepts_recipes_of(files: dict[str, str], folder: Path) -> None:
    """Every entry of additional catalog files can be planned."""
    more = folder / "catalog"
    more.mkdir()
    for name, text in files.items():
        (more / name).write_text(text)
        for entry in yaml.safe_load(text)["entries"]:
            words = ["plan", "--recipe", entry, "--gpus", "8", "--catalog", "catalog"]
            done = megatron(words)
            assert done.exit_code == 0, done.output
    assert catalog.load(more).problems == catalog.load().problems


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_is_valid_on_the_platform_of_the_page(path: Path, folder: Path) -> None:
    platform = folder / "platform.yaml"
    done = megatron(["validate", "-f", str(path), "--platform", str(platform)])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: f"{c.block.page.name}: {c.line[:60]}")
def test_a_command_is_accepted(command: Command, folder: Path) -> None:
    words = command.words
    if not words or re.fullmatch(r"\w+=.*", command.line) or words[0] in ("export", "for"):
        return
    program = words[0]
    if program == "megatron":
        runs(command, folder)
    elif program == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words[1]
    elif program == "megatron-convert":
        make_parser().parse_args(words[1:])
    elif words[:2] == ["python", "-m"]:
        has_options(words)
    elif command.line.startswith("("):
        subprocess.run(["bash", "-c", command.line], check=True)
    else:
        assert program in NEEDS, f"neither run nor listed in {NEEDS.keys()}"
        for path in re.findall(r"(?:-f|install \S+) ((?:operator|trainer-image|charts)/\S+)", command.line):
            assert (ROOT / path).exists(), path


def runs(command: Command, folder: Path) -> None:
    """The command succeeds, or is parsed where it reads a cluster; it prints what the page shows."""
    words = [word for word in command.words[1:] if word != "..."]
    parse(words)
    if words[0] in OF_A_CLUSTER or "--live" in words:
        return
    done = run_in(folder, words)
    if command.output is None:
        assert done.exit_code == 0, done.output
        return
    parts = [re.escape(part.strip()) for part in command.output.strip().split("…")]
    assert re.fullmatch(".*".join(parts), done.output.strip(), re.DOTALL), done.output


def has_options(words: list[str]) -> None:
    """The module exists, and its package has the options and choices of the command."""
    spec = importlib.util.find_spec(words[2])
    assert spec is not None
    assert spec.origin is not None
    sources = "\n".join(path.read_text() for path in Path(spec.origin).parent.glob("*.py"))
    for option in (word for word in words[3:] if word.startswith("--")):
        assert f'"{option}"' in sources, option


@pytest.mark.parametrize(
    "block",
    # tests/unit/sdk runs the blocks of docs/python.md.
    [b for b in BLOCKS if b.language == "python" and b.page.name != "python.md"],
    ids=lambda b: b.title,
)
def test_a_python_block_uses_names_that_exist(block: Block) -> None:
    tree = ast.parse(block.text)
    (imported,) = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    module = importlib.import_module(str(imported.module))
    cluster = getattr(module, imported.names[0].name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            assert hasattr(cluster, node.attr), node.attr


@pytest.mark.parametrize("block", [b for b in BLOCKS if is_tree(b)], ids=lambda b: b.title)
def test_the_tree_of_the_repository_names_folders_that_exist(block: Block) -> None:
    parents: list[tuple[int, str]] = []
    for line in block.text.splitlines():
        indent, name = len(line) - len(line.lstrip()), line.split()[0]
        parents = [each for each in parents if each[0] < indent]
        assert (ROOT / "".join(parent for _, parent in parents) / name).is_dir(), name
        parents.append((indent, name))


@pytest.mark.parametrize(("page", "line"), sorted(set(spans())), ids=lambda value: str(value)[-60:])
def test_a_command_within_a_sentence_is_parsed(page: Path, line: str, folder: Path) -> None:
    words = shlex.split(re.sub(r"^kubectl |[][]", "", line))[1:]
    name = words[0]
    assert name in cli.list_commands(click.Context(cli)), page
    if len(words) == 1 or "..." in line:
        return
    for placeholder, value in {"FILE": "recipe.yaml", "DIR": "catalog", "N": "8"}.items():
        words = [value if word == placeholder else word for word in words]
    (folder / "catalog").mkdir()
    try:
        parse(words)
    except click.MissingParameter:
        return
    except click.UsageError as incomplete:
        problem = incomplete.format_message()
    else:
        return
    assert problem.startswith("give "), page


def examples_of_help(command: click.Command, path: list[str]) -> list[str]:
    """Examples in the help texts of a command and of its subcommands."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        found = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
        return [line for name, each in found if each for line in examples_of_help(each, [*path, name])]
    return re.findall(r"^ *(megatron .*)$", command.help or "", re.MULTILINE)


@pytest.mark.parametrize("line", examples_of_help(cli, []))
def test_an_example_of_the_help_succeeds(line: str, folder: Path) -> None:
    line = line.partition(" | ")[0]
    words = shlex.split(line)[1:]
    parse(words)
    if words[0] not in (*OF_A_CLUSTER, "completion") and "--live" not in words and "-" not in words:
        (folder / "training" / "recipes").mkdir(parents=True)
        done = run_in(folder, words)
        assert done.exit_code == (2 if line in REFUSED else int(line in DIFFERENT)), done.output


def test_what_is_listed_as_not_run_stands_in_a_page() -> None:
    for start in NOT_COMMANDS:
        assert any(block.text.startswith(start) for block in BLOCKS), start
    assert {command.words[0] for command in COMMANDS if command.words} >= NEEDS.keys()


def test_the_pages_have_blocks_of_every_kind() -> None:
    assert len(YAML) >= 8
    assert len(COMMANDS) >= 50
    assert ROOT / "README.md" in {block.page for block in YAML}
