"""How far a conversion is: tensors and bytes of its two steps, to convert and to audit."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from megatron_contract.progress import PROGRESS_SCHEMA, ConversionProgress, ProgressReport

from megatron_trainer.telemetry.server import ProgressServer
from megatron_trainer.weights.tensors import Header, TensorSource, dtype_of


class Meter:
    """Counts what passes through it. `report` may be called by another thread than the rest."""

    def __init__(self) -> None:
        self._last: ConversionProgress | None = None
        self._measure: Callable[[], ConversionProgress] | None = None

    def follow(self, measure: Callable[[], ConversionProgress]) -> None:
        """Report what `measure` returns, which another thread calls."""
        self._measure = measure

    def begin(self, step: str, *passes: Mapping[str, int]) -> None:
        """Begin a step, `convert` or `audit`, that reads tensors in turn: bytes by name for each pass."""
        tensors = sum(len(each) for each in passes)
        size = sum(sum(each.values()) for each in passes)
        self._last = ConversionProgress(step, 0, tensors, 0, size)

    def watched(self, tensors: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Pass named tensors on, and count each once what took it asks for the next."""
        for name, tensor in tensors:
            size = tensor.nbytes
            yield name, tensor
            del tensor
            self._count(size)

    def counted(self, source: TensorSource) -> TensorSource:
        """Return a source that counts each tensor the first time that it is made."""
        seen: set[str] = set()

        def make(name: str) -> Any:
            tensor = source(name)
            if name not in seen:
                seen.add(name)
                self._count(tensor.nbytes)
            return tensor

        return make

    def _count(self, size: int) -> None:
        if (last := self._last) is not None:
            self._last = ConversionProgress(
                last.step,
                last.tensors_done + 1,
                last.tensors_total,
                last.bytes_done + size,
                last.bytes_total,
            )

    def report(self) -> ProgressReport:
        """Return the answer to /progress."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        last = self._measure() if self._measure else self._last
        return ProgressReport(PROGRESS_SCHEMA, "converting", updated_at=now, conversion=last)

    def serve(self, port: int) -> str | None:
        """Serve the progress. Returns why it is not served; the conversion goes on without."""
        try:
            ProgressServer(port, self.report).start()
        except OSError as error:
            return f"the progress is not served at port {port}: {error}"
        return None


def sizes(headers: Mapping[str, Header]) -> dict[str, int]:
    """Return the bytes of the tensors of a folder whose values are there, by name."""
    found = {}
    for name, header in headers.items():
        if header.file is not None:
            size = dtype_of(header.dtype).itemsize
            for length in header.shape:
                size *= length
            found[name] = size
    return found
