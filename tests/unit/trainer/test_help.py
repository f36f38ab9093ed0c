"""`megatron-train --help` tells how the pod is run, without Megatron and without a gang."""

import pytest
from megatron_trainer import contract
from megatron_trainer.launch import main


def test_help_names_every_setting_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--num-layers", "2", "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert contract.ENV_RENDEZVOUS_TIMEOUT in told
    assert all(f"{int(code)} {reason}" in told for code, reason in contract.REASONS.items())
