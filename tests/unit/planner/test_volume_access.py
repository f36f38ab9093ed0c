"""Access modes of volumes that the pods of a run cannot use."""

from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.status import Plan
from megatron_operator.api.validation import parse_spec
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner import PlannedRun, admit

ONE_NODE: dict[str, Any] = {"volume": {"size": "1Ti", "accessMode": "ReadWriteOnce"}}


def admitted(accelerator: dict[str, Any], previous: Plan | None = None, **sections: Any) -> PlannedRun:
    spec = {"recipe": "llama3-8b", "accelerator": accelerator, "data": {"mockData": True}} | sections
    return admit("run", parse_spec(spec), default_platform(), catalog.load(), previous=previous)


def test_data_on_a_volume_of_one_node_is_refused_for_several() -> None:
    data = {"blend": [{"path": "text"}], "volume": {"size": "1Ti", "accessMode": "ReadWriteOnce"}}
    with pytest.raises(InvalidRecipeError, match=r"spec\.data\.volume\.accessMode: .* 2 pods on several"):
        admitted({"type": "h100-sxm", "count": 16}, data=data)


def test_pods_that_may_share_a_node_may_share_a_volume_of_one_node() -> None:
    admitted({"type": "h100-sxm", "count": 8, "perNode": 4}, checkpoint=ONE_NODE)
    admitted({"type": "cpu", "count": 16, "perNode": 2}, recipe="tiny-gpt", checkpoint=ONE_NODE)


def test_a_run_that_an_earlier_release_admitted_goes_on_with_a_warning() -> None:
    sixteen = {"type": "h100-sxm", "count": 16}
    kept = admitted(sixteen, admitted(sixteen).plan, checkpoint=ONE_NODE)
    [warning] = [each for each in kept.warnings if "accessMode" in each]
    assert warning == (
        "checkpoint.volume.accessMode: ReadWriteOnce is for the pods of one node, and the run has 2 pods on "
        "several; leave it out, for ReadWriteMany"
    )
