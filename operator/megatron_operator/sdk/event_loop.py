"""An event loop on a thread of its own, for synchronous callers, also within the event loop of a notebook."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, Final

from megatron_operator.sdk.errors import ClusterUnreachableError

_CLOSED: Final = "the connection is closed, or belongs to the process before a fork; make a new Connection"


class EventLoopThread:
    """Runs coroutines for other threads until it is stopped."""

    def __init__(self, at_end: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """`at_end` is called once no other coroutine runs any more."""
        self._at_end = at_end
        self._loop = asyncio.new_event_loop()
        self._closing: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._queueing = threading.RLock()
        """Held while something is queued on the loop, so that nothing is once it stops.

        Meanwhile a generator may be collected, which queues its end."""
        self._thread = threading.Thread(target=self._run, daemon=True, name="megatron-sdk")
        self._thread.start()

    @property
    def running(self) -> bool:
        """False once stopped, and in a process that was forked since."""
        return self._thread.is_alive() and not self._stopping

    def call[T](self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine, which is cancelled where the caller is interrupted.

        Raises ClusterUnreachableError if the thread does not run, or is stopped meanwhile.
        """
        future = self._queue(coroutine)
        try:
            return future.result()
        except CancelledError:
            raise ClusterUnreachableError(_CLOSED) from None
        finally:
            future.cancel()

    def _queue[T](self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        if self.running:  # a forked process may have a copy of the lock that nobody releases
            with self._queueing:
                if self.running:
                    return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise ClusterUnreachableError(_CLOSED)

    def iterate[T](self, generator: AsyncGenerator[T]) -> Iterator[T]:
        """The values of an asynchronous generator, which is closed with the iterator."""

        async def following() -> T:
            return await anext(generator)

        try:
            while True:
                try:
                    value = self.call(following())
                except StopAsyncIteration:
                    return
                yield value
        finally:
            self._close(generator)

    def _close(self, generator: AsyncGenerator[Any]) -> None:
        """Close a generator; where the loop's own thread collects it, without waiting."""

        async def closing() -> None:
            await generator.aclose()

        if threading.current_thread() is self._thread:
            self._closing.add(task := self._loop.create_task(closing()))
            task.add_done_callback(self._closing.discard)
        elif self.running:
            self.call(closing())

    def stop(self) -> None:
        """End the thread; calls that still wait raise an error. Does nothing if it has ended."""
        if self.running:
            with self._queueing:
                if not self._stopping:
                    self._stopping = True
                    self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._finish())
        self._loop.close()

    async def _finish(self) -> None:
        """Cancel all other tasks: a caller that waits for one would wait until its process ends."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._at_end is not None:
            await self._at_end()
        await self._loop.shutdown_asyncgens()
