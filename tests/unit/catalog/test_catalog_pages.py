import subprocess
import sys
from pathlib import Path

import pytest
from megatron_operator import catalog
from megatron_operator.catalog import Entry

from scripts import what_ran_page
from testkit.small_models import ON_SEVERAL_RANKS

ROOT = Path(__file__).parents[3]


def test_the_catalog_pages_match_the_data() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "catalog_pages.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("entry", list(catalog.load()), ids=lambda entry: entry.name)
def test_a_recipe_is_trained_in_a_small_model_of_its_architecture_and_mode_or_has_a_reason(
    entry: Entry,
) -> None:
    row = what_ran_page.row(entry)
    assert row.trained_as or row.reason
    if row.trained_as:
        assert catalog.load().get(row.trained_as).modes == entry.modes
    if entry.engine == "bridge" and entry.starts:
        assert row.trained_as, "started, and no model of its architecture is trained in this mode"


@pytest.mark.parametrize(
    ("recipe", "trained_as"),
    [
        ("llama3-70b", "mistral-7b"),
        ("llama3.1-70b", "llama3.1-8b"),
        ("llama2-13b", "tiny-gpt"),
        ("wan2.1-14b-sft", "wan2.1-1.3b-sft"),
        ("qwen2-audio-7b-lora", "qwen2-audio-7b-lora"),
        ("mixtral-8x22b", "mixtral-8x7b"),
        ("mimo-7b", "mimo-7b"),
        ("gpt3-175b", "gpt3-1.3b"),
        ("gpt-462b", "gpt3-1.3b"),
        ("deepseek-v2", "deepseek-v2"),
    ],
)
def test_only_a_model_with_the_same_kind_of_layers_stands_for_a_recipe(recipe: str, trained_as: str) -> None:
    assert what_ran_page.row(catalog.load().get(recipe)).trained_as == trained_as


def test_the_functions_that_are_not_started_are_counted_by_reason() -> None:
    found: dict[str, list[str]] = {}
    for entry in catalog.load():
        for layout in entry.layouts:
            if layout.function and layout.obstacle:
                found.setdefault(layout.obstacle, []).append(layout.function)
    text = (ROOT / "docs" / "catalog" / "what-ran.md").read_text()
    listed = text.split("## Functions that are not started")[1]
    assert all(f"| {reason} | {len(functions)} |" in listed for reason, functions in found.items())
    assert f"{sum(map(len, found.values()))} are not started." in listed


def test_the_page_names_what_make_test_does_not_train_on_its_single_rank() -> None:
    text = (ROOT / "docs" / "catalog" / "what-ran.md").read_text()
    assert all(f"`{function}`" in text.partition("| Recipe |")[0] for function in ON_SEVERAL_RANKS)


def test_one_page_lists_every_recipe() -> None:
    listed = [entry.name for entry in catalog.load()]
    text = (ROOT / "docs" / "catalog" / "what-ran.md").read_text()
    assert len(listed) == len(set(listed))
    assert all(text.count(f"| [{name}](") == 1 for name in listed)
