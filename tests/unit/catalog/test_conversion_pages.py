"""Lists of weights that are converted, and of refused ones, in docs/weights.md and bridge-pretraining.md."""

import re
from pathlib import Path

from megatron_operator import catalog
from megatron_operator.catalog import bridge_pretraining, bridge_support
from megatron_operator.catalog.entry import Entry

DOCS = Path(__file__).parents[3] / "docs"
REFUSED = "Refused at admission, with the reason:"


def own_loop() -> list[tuple[Entry, str]]:
    """The recipes of Megatron Core's own loop, and why their weights are not converted."""
    entries = [entry for entry in catalog.load() if entry.engine == "megatron"]
    return [(each, bridge_support.conversion_obstacle(each.family, each.model)) for each in entries]


def refused(page: str) -> dict[str, str]:
    """Recipe -> reason, as the table of a page has them."""
    table = (DOCS / page).read_text().split(REFUSED, 1)[1].strip().split("\n\n", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {name: reason for names, reason in rows for name in re.findall("`([^`]+)`", names)}


def test_the_page_has_the_recipes_of_the_own_loop_that_are_refused_with_the_reason() -> None:
    expected = {entry.name: reason for entry, reason in own_loop() if reason}
    assert len(expected) > 15
    assert refused("weights.md") == expected


def test_the_page_links_every_family_of_the_own_loop_whose_weights_are_converted() -> None:
    before = (DOCS / "weights.md").read_text().split(REFUSED, 1)[0]
    linked = set(re.findall(r"\(catalog/([^)]+)\.md\)", before.split("- Families: ", 1)[1]))
    assert linked == {entry.family for entry, reason in own_loop() if not reason}


def test_the_page_has_the_recipes_of_bridge_whose_weights_are_not_converted() -> None:
    pretrained = [x for x in catalog.load() if x.engine == "bridge" and not x.fine_tunes]
    names = {x.name for x in pretrained if x.reads_latents or bridge_pretraining.conversion_obstacle(x)}
    assert len(names) > 5
    assert set(refused("bridge-pretraining.md")) == names
