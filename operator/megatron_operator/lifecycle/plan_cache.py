"""Plans by the content that they were made from, so that recipes that ask for the same are planned once."""

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Self

CAPACITY: Final = 8 * 2**20
"""Bytes of all plans together; one takes 10 to 30 KB."""
LARGEST: Final = 256 * 2**10
"""Bytes of a plan that is kept: one recipe must not displace those of all others."""


class PlanCache:
    """Keeps what planning returned, as long as its configuration is used; the least used go first.

    `capacity` is the bytes of all kept values, which are pickled: their size is known, and nobody who gets
    one can change it for others.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._size = 0
        self._plans: OrderedDict[bytes, bytes] = OrderedDict()

    def __reduce__(self) -> tuple[type[Self], tuple[int]]:
        """A pickled cache is empty: another process fills its own."""
        return type(self), (self._capacity,)

    def get[T](self, content: object, make: Callable[[], T]) -> T:
        """The result of `make` for this content. Raises what `make` raises, which is not kept.

        `content` consists of JSON values, and is everything that `make` depends on beside the configuration.
        The order of its keys counts: it is that of environment variables in a manifest.
        """
        # Not JSON: that would make the keys 1 and "1" of a YAML file the same.
        key = hashlib.sha256(repr(content).encode(errors="surrogatepass")).digest()
        if (kept := self._plans.get(key)) is not None:
            self._plans.move_to_end(key)
            found: T = pickle.loads(kept)
            return found
        made = make()
        self._keep(key, pickle.dumps(made, pickle.HIGHEST_PROTOCOL))
        return made

    def _keep(self, key: bytes, plan: bytes) -> None:
        if len(plan) > min(LARGEST, self._capacity):
            return
        self._plans[key] = plan
        self._size += len(plan)
        while self._size > self._capacity:
            _, oldest = self._plans.popitem(last=False)
            self._size -= len(oldest)
