"""One training run in a cluster, for scripts and notebooks: AsyncRun behind synchronous methods."""

import atexit
import builtins
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from megatron_operator.api.status import MegatronRecipeStatus
from megatron_operator.sdk.async_run import AsyncRun
from megatron_operator.sdk.connection import FIELD_MANAGER, AsyncConnection
from megatron_operator.sdk.event_loop import EventLoopThread
from megatron_operator.sdk.losses import LossPoint
from megatron_operator.sdk.readings import History, Reading
from megatron_operator.sdk.recipe import Recipe

if TYPE_CHECKING:
    import pandas


class Connection:
    """A cluster and a namespace, for Run; as AsyncConnection, without `await`.

    Without one, Run uses the cluster and the namespace of kubectl's current context.
    """

    def __init__(
        self,
        *,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | Path | None = None,
    ) -> None:
        self.asynchronous = AsyncConnection(namespace=namespace, context=context, kubeconfig=kubeconfig)
        self.thread = EventLoopThread(self.asynchronous.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; in other threads, calls that still wait raise ClusterUnreachableError."""
        self.thread.stop()

    def namespace(self) -> str:
        """The namespace of runs that name none."""
        return self.thread.call(self.asynchronous.namespace())


_default: Connection | None = None


def _default_connection() -> Connection:
    global _default
    if _default is None or not _default.thread.running:
        _default = Connection()
        atexit.register(_default.close)
    return _default


class Run:
    """A MegatronRecipe in a cluster, as it was last read. Make one with `apply`, `get` or `list`.

    Methods, errors and their meaning are those of AsyncRun.

        run = Run.apply(Recipe("tiny-gpt", count=4, data={"mockData": True})).wait()
    """

    def __init__(self, run: AsyncRun, connection: Connection) -> None:
        """Of an asynchronous run of the same connection."""
        self._run = run
        self._thread = connection.thread
        self._connection = connection

    @classmethod
    def apply(
        cls,
        recipe: Recipe,
        connection: Connection | None = None,
        *,
        field_manager: str = FIELD_MANAGER,
        force: bool = False,
    ) -> "Run":
        """Create the run or update it, by server-side apply; see AsyncRun.apply."""
        used = connection or _default_connection()
        applied = AsyncRun.apply(recipe, used.asynchronous, field_manager=field_manager, force=force)
        return cls(used.thread.call(applied), used)

    @classmethod
    def get(cls, name: str, connection: Connection | None = None, *, namespace: str | None = None) -> "Run":
        """The run of this name."""
        used = connection or _default_connection()
        return cls(used.thread.call(AsyncRun.get(name, used.asynchronous, namespace=namespace)), used)

    @classmethod
    def list(
        cls,
        connection: Connection | None = None,
        *,
        namespace: str | None = None,
        all_namespaces: bool = False,
        selector: str | None = None,
    ) -> "builtins.list[Run]":
        """The runs of a namespace, or of all, by label selector (`team=nlp,tier!=test`)."""
        used = connection or _default_connection()
        found = AsyncRun.list(
            used.asynchronous, namespace=namespace, all_namespaces=all_namespaces, selector=selector
        )
        return [cls(run, used) for run in used.thread.call(found)]

    @property
    def name(self) -> str:
        """Name of the recipe."""
        return self._run.name

    @property
    def namespace(self) -> str:
        """Namespace of the recipe."""
        return self._run.namespace

    @property
    def resource(self) -> dict[str, Any]:
        """The object as it was last read."""
        return self._run.resource

    @property
    def status(self) -> MegatronRecipeStatus:
        """The status as it was last read."""
        return self._run.status

    @property
    def phase(self) -> str | None:
        """`status.phase` as it was last read."""
        return self._run.phase

    @property
    def recipe(self) -> Recipe:
        """The recipe as it was last read."""
        return self._run.recipe

    def refresh(self) -> "Run":
        """Read the recipe again; returns the same run."""
        self._thread.call(self._run.refresh())
        return self

    def wait(
        self, *, phase: str | None = None, condition: str | None = None, timeout: float | None = None
    ) -> "Run":
        """Wait for a phase or condition, by default until the run has succeeded; see AsyncRun.wait."""
        self._thread.call(self._run.wait(phase=phase, condition=condition, timeout=timeout))
        return self

    def stream(self) -> Iterator[Reading]:
        """Progress now and after each change, until the run has ended; see AsyncRun.stream."""
        return self._thread.iterate(self._run.stream())

    def history(self) -> History:
        """Incidents, attempts and timeline."""
        return self._thread.call(self._run.history())

    def loss_points(self) -> "builtins.list[LossPoint]":
        """Loss over iterations from the log of the last rank's pod; see AsyncRun.loss_points."""
        return self._thread.call(self._run.loss_points())

    def loss(self) -> "pandas.DataFrame":
        """`loss_points` as a DataFrame. Raises MissingExtraError without pandas."""
        return self._thread.call(self._run.loss())

    def logs(self, *, rank: int | None = None, tail: int | None = None) -> str:
        """The log of the pod that failed first, or of the pod of a rank."""
        return self._thread.call(self._run.logs(rank=rank, tail=tail))

    def follow_logs(self, *, rank: int | None = None, tail: int | None = None) -> Iterator[str]:
        """Lines of the same log as they are written, until the container ends."""
        return self._thread.iterate(self._run.follow_logs(rank=rank, tail=tail))

    def suspend(self) -> "Run":
        """Release the accelerators and keep everything else."""
        self._thread.call(self._run.suspend())
        return self

    def resume(self) -> "Run":
        """Continue a suspended run from its newest checkpoint."""
        self._thread.call(self._run.resume())
        return self

    def delete(self) -> None:
        """Delete the recipe, and with it job and pods; see AsyncRun.delete."""
        self._thread.call(self._run.delete())

    def __repr__(self) -> str:
        return repr(self._run).replace("AsyncRun", "Run", 1)
