"""Installs Debian's packages of programs that tests use where they are missing.

prometheus evaluates the alerts and the dashboard's queries, chromium opens the web page. Without one, and
where it cannot be installed, its tests are skipped with the reason.
"""

from localcluster import packages
from localcluster.console import Console
from localcluster.errors import ClusterError

PROGRAMS = {
    "alerts and the dashboard's queries": {"prometheus": "prometheus", "promtool": "prometheus"},
    "pages in a browser": {"chromium": "chromium"},
}
"""Debian package by command, by what is tested with it."""


def main() -> None:
    """Install them, or print why not."""
    console = Console()
    for tested, commands in PROGRAMS.items():
        try:
            packages.install(console, commands)
        except (ClusterError, OSError) as error:
            console.line(f"not tested for lack of {', '.join(sorted(commands))}: {tested}: {error}")


if __name__ == "__main__":
    main()
