"""Records which samples each iteration of a rank has read, in the run's folder of samples."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from megatron.core import parallel_state
from megatron_contract.environment import SAMPLES_DIR
from torch.utils.data import DataLoader

from megatron_trainer.telemetry.sample_log import TRAINED, UNFINISHED, SampleLog, Start
from megatron_trainer.worker.recorded_loader import Read, RecordedLoader, describe


class SampleRecorder:
    """Of the ranks that read the same samples, the first of each data-parallel rank records them."""

    def __init__(self, generation: int) -> None:
        self._generation = generation
        self._loader: DataLoader[Any] | None = None
        self._log: SampleLog | None = None
        self._numbers: list[int] = []
        self._places: list[int] | None = None

    @property
    def is_recording(self) -> bool:
        """Whether the rank reads samples that it records."""
        return self._loader is not None

    def watch(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the loaders that Megatron builds, of which that for training is the first, recorded."""
        training, *others = inner(*args, **kwargs)
        # Virtual stages build one each, of which the first stage's is the first.
        if self._loader is None and isinstance(training, DataLoader) and _is_first_of_replica():
            self._loader = training
            training = RecordedLoader(training, self._note)
        return (training, *others)

    def _note(self, read: Read) -> None:
        self._numbers += read.numbers
        if read.places is not None:
            self._places = [*(self._places or ()), *read.places]

    def end(self, iteration: int, save: str | None, state: str = TRAINED) -> None:
        """Record that `iteration` has read what was read since the last call."""
        numbers, places = self._numbers, self._places
        self._numbers, self._places = [], None
        if self._loader is None or not save or not numbers:
            return
        if self._log is None:
            dataset: Any = self._loader.dataset
            ranks = parallel_state.get_data_parallel_world_size()
            start = Start(self._generation, iteration - 1, ranks, len(dataset), describe(self._loader))
            self._log = SampleLog(Path(save) / SAMPLES_DIR, parallel_state.get_data_parallel_rank(), start)
        self._log.add(iteration, numbers, places, state)

    def flush(self) -> None:
        """Write what is recorded."""
        if self._log is not None:
            self._log.flush()

    def close(self, iteration: int | None, save: str | None) -> None:
        """Write what is recorded when the rank ends, in the step of `iteration` if that is not None."""
        if iteration is not None:
            self.end(iteration, save, UNFINISHED)
        self.flush()


def _is_first_of_replica() -> bool:
    """Whether no other rank of this data-parallel rank has a lower place in its layout."""
    places = (
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_context_parallel_rank(),
    )
    return not any(places)
