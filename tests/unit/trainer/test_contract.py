"""Operator and trainer import nothing of each other; what they agree on is written twice, held equal here."""

from types import ModuleType

import megatron_operator.contract
import megatron_trainer.contract
from megatron_trainer.contract import REASONS, ExitCode


def constants(module: ModuleType) -> dict[str, object]:
    return {name: value for name, value in vars(module).items() if name.isupper()}


def test_environment_names_are_the_same_set_with_the_same_values() -> None:
    ours, theirs = (
        {name: value for name, value in constants(module).items() if name.startswith("ENV_")}
        for module in (megatron_trainer.contract, megatron_operator.contract)
    )
    assert ours == theirs


def test_constants_that_both_have_are_equal() -> None:
    ours, theirs = constants(megatron_trainer.contract), constants(megatron_operator.contract)
    shared = ours.keys() & theirs.keys()
    assert {"PROGRESS_PORT", "PROGRESS_FILE", "PROGRESS_SCHEMA", "PROGRESS_PORT_NAME"} <= shared
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}


def test_exit_codes_are_the_same() -> None:
    theirs = megatron_operator.contract.ExitCode
    assert {code.name: int(code) for code in ExitCode} == {code.name: int(code) for code in theirs}


def test_the_word_that_a_run_is_done_is_the_same() -> None:
    assert REASONS[ExitCode.OK] == megatron_operator.contract.REASON_COMPLETED


def test_every_exit_code_has_a_reason_of_its_own() -> None:
    assert set(REASONS) == set(ExitCode)
    assert len(set(REASONS.values())) == len(REASONS)
