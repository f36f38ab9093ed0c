"""The format of `data.sources` where it is not set."""

from typing import Any

import pytest
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog.sources import with_formats


def formats(*sources: dict[str, Any], fine_tunes: bool = False) -> list[str | None]:
    spec = {"recipe": "any", "accelerator": {"count": 1}, "data": {"sources": list(sources)}}
    found, _ = with_formats(MegatronRecipeSpec.model_validate(spec), fine_tunes=fine_tunes)
    assert found.data is not None
    return [source.format for source in found.data.sources or []]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/docs.parquet", "parquet"),
        ("/data/raw/**/*.parquet", "parquet"),
        ("/data/book.txt", "text"),
        ("/data/*.txt.zst", "text"),
        ("/data/web.jsonl", None),
        ("/data/docs.parquet.gz", None),
        ("/data/saved", None),
        ("/data/docs.json", None),
    ],
)
def test_a_suffix_names_the_format_or_leaves_it_open(path: str, kind: str | None) -> None:
    assert formats({"path": path}) == [kind]


def test_lines_with_a_key_are_text_and_those_of_fine_tuning_chats() -> None:
    assert formats({"path": "/data/web.jsonl.gz", "key": "body"}) == ["jsonl"]
    assert formats({"path": "/data/chats.jsonl.gz"}, fine_tunes=True) == ["chat"]


def test_a_format_that_is_set_stays() -> None:
    assert formats({"path": "/data/notes.txt", "format": "jsonl"}) == ["jsonl"]
