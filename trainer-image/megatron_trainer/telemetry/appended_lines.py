"""Reads what was appended to a file of lines since the last time."""

from pathlib import Path


class AppendedLines:
    """The complete lines of a file that another process appends to. Without a path there are none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._offset = 0

    def read_new(self) -> list[bytes]:
        """The lines that were completed since the last call; none while the file does not exist.

        Raises OSError; the next call reads these lines.
        """
        if self._path is None:
            return []
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        text = text[: text.rfind(b"\n") + 1]
        self._offset += len(text)
        return text.splitlines()
