"""Which worker builds which shard, by files beside them, so that two do not build one at once.

A claim is a hint: it is lost with its worker, and others take the shard when they have not seen a change of
the file for a while. Two that build the same shard still write the same bytes.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_BEAT_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 60.0
"""A reader that repeats requests to an object store may be silent for half a minute."""


class Claims:
    """Claims of one worker. The clock of the volume is not used, as those of nodes differ."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without claims."""
        self._clock = clock
        self._seen: dict[Path, tuple[str, float]] = {}

    def take(self, shard: Path, owner: str) -> bool:
        """Claim a shard unless another owner builds it. A worker that is started again has its own claims.

        `shard` is the file that will have its records. Raises OSError, FileNotFoundError without its folder.
        """
        claim = _claim(shard)
        try:
            with claim.open("x", encoding="utf-8") as file:
                file.write(_line(owner, self._clock()))
        except FileExistsError:
            if not self._may_take(claim, owner):
                return False
            claim.write_text(_line(owner, self._clock()), encoding="utf-8")
        return True

    def _may_take(self, claim: Path, owner: str) -> bool:
        try:
            line = claim.read_text(encoding="utf-8")
        except FileNotFoundError:
            return True
        if line.partition("\n")[0] == owner:
            return True
        now = self._clock()
        seen, since = self._seen.get(claim, ("", now))
        if line != seen:
            since = now
        self._seen[claim] = line, since
        return now - since >= SILENT_SECONDS

    def kept(self, shard: Path, owner: str, texts: Iterator[str]) -> Iterator[str]:
        """Pass the documents of a claimed shard on, and show that it is being built."""
        beaten = self._clock()
        for text in texts:
            yield text
            now = self._clock()
            if now - beaten >= _BEAT_SECONDS:
                beaten = now
                _claim(shard).write_text(_line(owner, now), encoding="utf-8")

    def release(self, shard: Path) -> None:
        """Give up the claim of a shard that is complete."""
        _claim(shard).unlink(missing_ok=True)


def _claim(shard: Path) -> Path:
    return shard.with_suffix(".claim")


def _line(owner: str, now: float) -> str:
    return f"{owner}\n{now}"
