"""Options of all test layers."""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files anew")


class Golden:
    """Compares text with a file of tests/golden, or writes the file under --update-golden."""

    ROOT = Path(__file__).parent / "golden"

    def __init__(self, update: bool) -> None:
        self.update = update

    def check(self, name: str, text: str) -> None:
        path = self.ROOT / name
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing: run `make golden` and look at the diff"
        assert text == path.read_text(), f"{path} differs: run `make golden` and look at the diff"


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.config.getoption("--update-golden"))
