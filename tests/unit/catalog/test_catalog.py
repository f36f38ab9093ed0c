from pathlib import Path

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.catalog import Catalog

ENTRY = "entries: {mine: {extends: small-1, description: d, source: s, %s}}"


def problems(folder: Path) -> str:
    return "\n".join(map(str, catalog.load(folder).check()))


def test_every_shipped_entry_is_complete_and_names_its_source() -> None:
    shipped = catalog.load()
    assert shipped.check() == []
    for entry in shipped:
        assert entry.source
        assert entry.model.num_layers or entry.engine == "bridge", entry.name


def test_an_entry_overrides_the_values_that_it_extends(small: Catalog) -> None:
    entry = small.get("small-2")
    assert entry.model.num_layers == 2
    assert entry.model.hidden_size == 64
    assert entry.training.lr_warmup_iters == 20
    assert entry.family == "small"


def test_null_removes_an_inherited_setting(small: Catalog) -> None:
    assert small.get("small-1").model.hidden_dropout == 0.0
    assert small.get("small-2").model.hidden_dropout is None


def test_layouts_aliases_and_corrections_of_an_extended_entry_are_not_inherited(small: Catalog) -> None:
    entry = small.get("small-2")
    assert entry.layouts == []
    assert entry.aliases == []
    assert entry.corrections == []


def test_corrections_of_a_template_precede_the_entrys_own(small: Catalog) -> None:
    assert [correction.published for correction in small.get("small-1").corrections] == ["nothing", "a"]


def test_an_alias_finds_the_entry(small: Catalog) -> None:
    assert small.get("small").name == "small-1"


def test_templates_are_not_recipes(small: Catalog) -> None:
    assert "small-base" not in small.names()
    with pytest.raises(InvalidRecipeError):
        small.get("small-base")


def test_an_unknown_name_is_rejected_with_similar_ones(small: Catalog) -> None:
    with pytest.raises(
        InvalidRecipeError, match=r"no recipe 'smal-1'; did you mean small-1.*`megatron recipes` lists all"
    ):
        small.get("smal-1")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("model: {numLayer: 3}", "own.yaml: mine.model.numLayer: "),
        ("model: {numLayers: many}", "own.yaml: mine.model.numLayers: "),
        ("model: 3", "own.yaml: mine.model: is not a map"),
        ("gpus: 3", "own.yaml: mine.gpus: "),
        ("layouts: [{accelerators: [x], count: 0, source: s}]", "own.yaml: mine.layouts.0.count: "),
        (
            "layouts: [{accelerators: [x], count: 1, source: s}, {accelerators: [x], count: 1, source: s}]",
            "two layouts for 1 x x",
        ),
        ("aliases: [gpt3-6.7b]", "own.yaml: mine.aliases: gpt3-6.7b already belongs to gpt3-7b"),
    ],
)
def test_an_invalid_entry_is_reported_by_file_entry_and_field(folder: Path, wrong: str, message: str) -> None:
    (folder / "own.yaml").write_text(ENTRY % wrong)
    assert message in problems(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("entries: [", "own.yaml: invalid YAML in line 2: did not find expected node content"),
        ("entries: " + "[" * 100_000, "own.yaml: invalid YAML in line 1: more than"),
        ("- a", "own.yaml: is not a catalog file"),
        ("entry: {}", "own.yaml: is not a catalog file"),
        ("entries: {mine: 3}", "own.yaml: mine: is not a map"),
        ("entries: {mine: {extends: nothing}}", "own.yaml: mine.extends: nothing does not exist"),
        ("entries: {a: {extends: b}, b: {extends: a}}", "is circular: a -> b -> a"),
        (
            "entries: {gpt3-7b: {description: d, source: s}}",
            "own.yaml: gpt3-7b: the name exists in gpt3.yaml",
        ),
        (
            "entries: {small-1: {description: d, source: s}}",
            "small.yaml: small-1: already exists in own.yaml",
        ),
    ],
)
def test_an_invalid_file_is_reported_by_its_name(folder: Path, text: str, message: str) -> None:
    (folder / "own.yaml").write_text(text)
    assert message in problems(folder)


def test_an_invalid_file_does_not_affect_other_entries(folder: Path) -> None:
    (folder / "own.yaml").write_text("entries: [")
    loaded = catalog.load(folder)
    assert loaded.get("small-1").name == "small-1"
    assert loaded.get("llama3-8b").name == "llama3-8b"
    with pytest.raises(InvalidRecipeError, match=r"no recipe 'mine'; own\.yaml: invalid YAML in line 2"):
        loaded.get("mine")


def test_own_entries_may_extend_shipped_ones(folder: Path) -> None:
    (folder / "own.yaml").write_text(
        "entries: {mine: {extends: llama3-8b, description: d, source: s, training: {lr: 1.0e-5}}}"
    )
    entry = catalog.load(folder).get("mine")
    assert entry.training.lr == 1e-5
    assert entry.model == catalog.load().get("llama3-8b").model


def test_the_hidden_links_of_a_mounted_config_map_are_not_read_twice(folder: Path) -> None:
    hidden = folder / "..2026_01_01"
    hidden.mkdir()
    (folder / "small.yaml").rename(hidden / "small.yaml")
    (folder / "..data").symlink_to(hidden.name)
    (folder / "small.yaml").symlink_to("..data/small.yaml")
    assert catalog.load(folder).check() == []


def test_a_missing_directory_is_a_problem_not_a_crash(tmp_path: Path) -> None:
    assert "is not a directory" in problems(tmp_path / "none")


@pytest.mark.parametrize("section", ["entries", "templates", "functions"])
def test_a_section_that_is_no_map_is_reported(folder: Path, section: str) -> None:
    (folder / "own.yaml").write_text(f"{section}: --load")
    assert f"own.yaml: {section}: '--load' is not a map; write it as" in problems(folder)


def test_a_hostile_key_or_string_of_an_entry_is_reported_in_a_short_line(folder: Path) -> None:
    (folder / "own.yaml").write_text(ENTRY % ('"' + "x\\n" * 500 + '": 1'))
    (line,) = problems(folder).splitlines()
    assert len(line) < 300
    (folder / "own.yaml").write_text(ENTRY % 'megatronArgs: {wandb-project: "a\\nb"}')
    assert r"own.yaml: mine.megatronArgs.wandb-project: 'a\nb' has a control character" in problems(folder)


def test_an_entry_without_a_mode_is_reported(folder: Path) -> None:
    (folder / "own.yaml").write_text(ENTRY % "modes: []")
    assert "own.yaml: mine.modes: " in problems(folder)


def test_a_taken_alias_is_reported_in_a_short_line(folder: Path) -> None:
    (folder / "own.yaml").write_text(
        'entries: {a: {extends: small-1, description: d, source: s, aliases: ["x\\ny"]},'
        ' b: {extends: small-1, description: d, source: s, aliases: ["x\\ny"]}}'
    )
    assert r"own.yaml: b.aliases: 'x\ny' already belongs to a; remove it" in problems(folder)
