"""An event loop on a thread of its own, for synchronous callers, also within the event loop of a notebook."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any


class EventLoopThread:
    """Runs coroutines for other threads until it is stopped."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, daemon=True, name="megatron-sdk")
        self._thread.start()

    @property
    def running(self) -> bool:
        """False once stopped, and in a process that was forked since."""
        return self._thread.is_alive()

    def call[T](self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine, which is cancelled where the caller is interrupted."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

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
        """End the thread. Does nothing if it has ended."""
        if self.running:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
