"""Which faults are injected into runs whose job is no PyTorchJob."""

import pytest

from testkit.faults.backends import CONTROLLERS, EXTENDED, OF_TRAINING_OPERATOR, rows_with
from testkit.faults.rows import ROWS


@pytest.mark.parametrize("backend", ["jobset", "trainjob"])
def test_other_kinds_of_job_get_all_quick_rows_but_that_of_the_training_operator(backend: str) -> None:
    names = [row.name for row in rows_with(backend)]
    quick = {row.name for row in ROWS if not row.extended}
    assert OF_TRAINING_OPERATOR in quick
    assert quick - set(names) == {OF_TRAINING_OPERATOR}
    assert set(EXTENDED) < set(names)
    assert len(names) == len(set(names)) == len(quick) - 1 + len(EXTENDED) + len(CONTROLLERS[backend])
