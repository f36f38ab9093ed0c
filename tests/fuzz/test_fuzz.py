"""Cases of the fuzzer with a fixed seed: no traceback, no answer over a second, no error without a field.

`make fuzz` runs more of them, with a new seed each time.
"""

import pytest

from testkit.fuzz.runner import run

CASES = {
    "recipe": 150,
    "platform": 50,
    "catalog": 50,
    "progress": 50,
    "termination": 40,
    "conversion": 20,
    "page": 20,
    "status": 50,
    "journal": 40,
}


@pytest.mark.parametrize("target", CASES)
def test_every_text_gets_an_answer(target: str) -> None:
    summary = run(target, CASES[target], seed=1)
    found = [
        f"{finding.kind}\n{finding.detail}\n--- case\n{finding.text}" for finding in summary.findings.values()
    ]
    assert not found, "\n\n".join(found)
    assert summary.cases == CASES[target]
