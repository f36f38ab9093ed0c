"""Reasons are declared once: code that reports one, `api.reasons` and docs/operations.md agree."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from megatron_operator.api import reference
from megatron_operator.api.pod_warnings import PodWarning
from megatron_operator.api.reasons import Reason

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "operator" / "megatron_operator"
TRAINER = ROOT / "trainer-image" / "megatron_trainer"
REPORTING = [*(PACKAGE / "lifecycle").glob("*.py"), *(PACKAGE / "controller").glob("*.py")]
OF_THE_API_SERVER = {"ApiError"}
"""Callables whose `reason` is one of Kubernetes' own."""


def trees() -> list[ast.Module]:
    return [ast.parse(path.read_text()) for path in REPORTING]


def reason_positions(modules: list[ast.Module]) -> dict[str, int]:
    """Functions and dataclasses with a parameter `reason` -> its position among positional arguments."""
    found = {}
    for node in (node for module in modules for node in ast.walk(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [each.arg for each in node.args.args if each.arg not in ("self", "cls")]
        elif isinstance(node, ast.ClassDef):
            targets = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        else:
            continue
        if "reason" in names and node.name not in OF_THE_API_SERVER:
            found[node.name] = names.index("reason")
    return found


def reported_literals(modules: list[ast.Module]) -> Iterator[str]:
    """Words without a space that are passed as `reason`."""
    positions = reason_positions(modules)
    for node in (node for module in modules for node in ast.walk(module)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name not in positions:
            continue
        arguments = [keyword.value for keyword in node.keywords if keyword.arg == "reason"]
        if positions[name] < len(node.args):
            arguments.append(node.args[positions[name]])
        for argument in arguments:
            for part in ast.walk(argument):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isalpha():
                    yield part.value


def test_reasons_are_reported_as_members_and_not_as_literals() -> None:
    modules = trees()
    assert {"set_condition", "add_event"} <= reason_positions(modules).keys()
    assert set(reported_literals(modules)) == set()


@pytest.mark.parametrize("reason", Reason)
def test_every_declared_reason_is_reported(reason: Reason) -> None:
    texts = [path.read_text() for path in REPORTING]
    assert any(f"Reason.{reason.name}" in text for text in texts)


@pytest.mark.parametrize("warning", PodWarning)
def test_every_pod_warning_is_raised_by_the_trainer(warning: PodWarning) -> None:
    assert any(f'"{warning}"' in path.read_text() for path in TRAINER.rglob("*.py"))


def test_every_reason_states_what_it_means_in_a_sentence() -> None:
    for each in (*Reason, *PodWarning):
        assert each.meaning.endswith(".")
        assert each.action == "" or each.action.endswith(".")


def test_the_operations_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert page == reference.with_reasons(page), "run `make crds`"


def test_a_page_without_markers_is_an_error() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        reference.with_reasons("# Operations\n")
