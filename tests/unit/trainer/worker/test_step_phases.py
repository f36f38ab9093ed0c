"""Waits of a step are measured on the stream that the step runs on."""

from types import SimpleNamespace

import pytest
import torch
from megatron_trainer.platform.cuda_stand_in import _Event
from megatron_trainer.worker.step_phases import COLLECTIVES, SAMPLE_EVERY, StepPhases
from torch.distributed import ProcessGroup, Work

OWN, SIDE = 0, 7
"""Streams: of the step, and one on which a collective overlaps with it."""


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The current stream, `cuda_stream`; its events are clocks, and torch is as before at the end."""
    current = SimpleNamespace(cuda_stream=OWN)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: _Event())
    for name in COLLECTIVES:
        monkeypatch.setattr(ProcessGroup, name, getattr(ProcessGroup, name))
    monkeypatch.setattr(Work, "wait", Work.wait)
    return current


def test_a_collective_that_overlaps_on_another_stream_is_no_wait(
    streams: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessGroup, "barrier", lambda: sum(range(10_000)))
    phases = StepPhases()
    phases.install()
    phases.begin(SAMPLE_EVERY)
    streams.cuda_stream = SIDE
    ProcessGroup.barrier()
    streams.cuda_stream = OWN
    assert phases.end() == 0.0
    phases.begin(2 * SAMPLE_EVERY)
    ProcessGroup.barrier()
    waited = phases.end()
    assert waited is not None
    assert waited > 0.0
