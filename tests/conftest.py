"""Options and fixtures of all test layers."""

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from testkit import last_release as release

# No time is asserted: on a busy machine inputs take longer to generate.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files from the code")


def pytest_report_teststatus(
    report: pytest.TestReport | pytest.CollectReport, config: pytest.Config
) -> tuple[str, str, str] | None:
    """A log gets no character per passed test: 10,000 of them would hide the line that names a failed one."""
    if report.when == "call" and report.passed and config.get_verbosity() <= 0 and not sys.stdout.isatty():
        return "passed", "", ""
    return None


class Golden:
    """Compares text with a file below tests/golden, or rewrites the file under --update-golden."""

    ROOT = Path(__file__).parent / "golden"

    def __init__(self, update: bool) -> None:
        self.update = update

    def check(self, name: str | Path, text: str) -> None:
        """Fail unless the file has exactly this text. `name` is relative to tests/golden, or absolute."""
        path = self.ROOT / name
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing: run `make golden` and review the diff"
        assert text == path.read_text(), f"{path} differs: run `make golden` and review the diff"


@pytest.fixture(scope="session")
def last_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source tree of the last release; a clone without its commit skips the tests."""
    if not release.known():
        pytest.skip(f"this clone has no commit of release {release.VERSION}: git fetch --unshallow")
    return release.unpack(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.config.getoption("--update-golden"))
