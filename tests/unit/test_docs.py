"""Pages: links lead somewhere, decision records are complete, the architecture page names what exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").glob("*/README.md")],
)
RECORDS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
DIRECTORIES = (
    ROOT,
    ROOT / "operator" / "megatron_operator",
    ROOT / "operator" / "megatron_operator" / "planner",
    ROOT / "trainer-image" / "megatron_trainer",
    ROOT / "contract",
    ROOT / "cluster",
    ROOT / "docs",
)


def without_code(text: str) -> str:
    """The page without fenced blocks, whose brackets are no links."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Anchors of the page's headings, as code hosting sites form them."""
    headings = re.findall(r"^#+ (.*)$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_to_a_file_and_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", without_code(page.read_text())):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{target}: no such file"
        if anchor:
            assert anchor in anchors(file), f"{target}: no such heading"


def test_there_are_ten_decision_records_and_the_index_lists_all() -> None:
    assert len(RECORDS) >= 10
    numbers = [int(record.name[:4]) for record in RECORDS]
    assert numbers == list(range(1, len(RECORDS) + 1)), "numbers are consecutive"
    listed = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (ROOT / "docs/decisions/README.md").read_text())
    assert listed == [record.name for record in RECORDS]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_decision_record_has_number_date_and_all_parts(record: Path) -> None:
    text = record.read_text()
    assert text.startswith(f"# {record.name[:4]}: ")
    assert re.search(
        r"^Date: \d{4}-\d{2}-\d{2}\. Status: (accepted|superseded by \[\d{4}\])", text, re.MULTILINE
    )
    parts = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert parts == ["Context", "Decision", "What was tried", "Consequences"]


@pytest.mark.parametrize("page", [ROOT / "docs" / "architecture.md", *RECORDS], ids=lambda page: page.stem)
def test_architecture_pages_name_files_that_exist(page: Path) -> None:
    for name in re.findall(r"`((?:[\w-]+/)+(?:[\w-]+\.(?:py|md|yaml|txt))?)`", page.read_text()):
        assert any((directory / name).exists() for directory in DIRECTORIES), f"{name}: no such file"


def test_the_glossary_has_at_most_twelve_terms() -> None:
    glossary = (ROOT / "docs" / "architecture.md").read_text().split("## Glossary", 1)[1]
    terms = [line for line in glossary.splitlines() if line.startswith("| ")][1:]
    assert 0 < len(terms) <= 12
