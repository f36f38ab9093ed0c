"""Values of Secrets leave the pod in no text of an exception."""

from pathlib import Path

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import prepare
from megatron_trainer.secret_values import REPLACEMENT, name_secret_variables, scrub
from megatron_trainer.termination import Ending

TOKEN = "hf_0123 456/789"


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        (f"401 for Bearer {TOKEN}.", f"401 for Bearer {REPLACEMENT}."),
        ("GET https://hub/?token=hf_0123%20456%2F789", f"GET https://hub/?token={REPLACEMENT}"),
        ("key -----BEGIN----- AbCdEf is invalid", f"key {REPLACEMENT} is invalid"),
        ("line AbCdEf of the key", f"line {REPLACEMENT} of the key"),
        ("'-----BEGIN-----\\nAbCdEf' is no path", f"'{REPLACEMENT}' is no path"),
        ("user abc of public-name", "user abc of public-name"),
    ],
    ids=["as it is", "in a URL", "in one line", "one line of it", "in quotes", "short or public"],
)
def test_the_value_of_a_secret_is_replaced_in_each_of_its_forms(text: str, scrubbed: str) -> None:
    environment = {
        "HF_TOKEN": TOKEN,
        "KEY": "-----BEGIN-----\nAbCdEf",
        "USER_NAME": "abc",
        "PROJECT": "public-name",
        "MEGATRON_SECRET_VARIABLES": "HF_TOKEN KEY USER_NAME ABSENT",
    }
    assert scrub(text, environment) == scrubbed


def test_of_a_whole_secret_each_variable_that_is_not_known_is_taken_for_secret() -> None:
    environment = {
        "MEGATRON_SECRET_VARIABLES": "* -MEGATRON_RUN_ID -HOME",
        "MEGATRON_RUN_ID": "run-of-a-team",
        "HOSTNAME": "run-worker-0",
        "WANDB_API_KEY": "0123456789",
    }
    name_secret_variables(environment)
    environment["TMPDIR"] = "/tmp/later"
    text = scrub("run-of-a-team on run-worker-0 in /tmp/later: key 0123456789", environment)
    assert text == f"run-of-a-team on run-worker-0 in /tmp/later: key {REPLACEMENT}"


def test_an_ending_has_no_value_of_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATRON_SECRET_VARIABLES", "HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert TOKEN not in Ending(ExitCode.WORKER_DIED, f"rank 0: 401 for {TOKEN}").message


def test_the_end_of_a_preparation_has_no_value_of_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "termination-log"
    monkeypatch.setenv("MEGATRON_TERMINATION_LOG", str(log))
    monkeypatch.setenv("MEGATRON_SECRET_VARIABLES", "HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    options = ["--source", f"/absent/{TOKEN}", "--output-prefix", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        prepare.main([*options, "--tokenizer-dir", str(tmp_path)])
    assert ended.value.code == ExitCode.BAD_DATA
    for text in (log.read_text(), capsys.readouterr().out):
        assert TOKEN not in text
        assert f"(--source): /absent/{REPLACEMENT} is not a folder" in text


def test_without_secrets_a_text_stays_as_it_is() -> None:
    assert scrub("HF_TOKEN is hf_0123", {"HF_TOKEN": "hf_0123"}) == "HF_TOKEN is hf_0123"
