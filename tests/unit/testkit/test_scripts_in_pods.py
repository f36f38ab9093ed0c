"""Scripts that tests of fine-tuning run in pods find there what they import."""

import ast

import pytest

from tests.fine_tuning.pods import FILES, scripts


@pytest.mark.parametrize("place", FILES)
def test_what_a_script_imports_of_the_repository_is_in_the_pod_too(place: str) -> None:
    for node in ast.walk(ast.parse(FILES[place].read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("testkit", "tests"):
            assert f"{(node.module or '').replace('.', '/')}.py" in FILES


def test_a_script_has_a_key_of_its_own() -> None:
    assert len(scripts()["data"]) == len(FILES)
