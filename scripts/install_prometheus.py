"""Installs Debian's package prometheus where it is missing: alerts and dashboard queries are tested with it.

Without it, and where it cannot be installed, those tests are skipped with the reason.
"""

from localcluster import packages
from localcluster.console import Console
from localcluster.errors import ClusterError

PROGRAMS = {"prometheus": "prometheus", "promtool": "prometheus"}


def main() -> None:
    """Install it, or print why not."""
    console = Console()
    try:
        packages.install(console, PROGRAMS)
    except (ClusterError, OSError) as error:
        console.line(f"alerts and the dashboard's queries are not tested, for lack of Prometheus: {error}")


if __name__ == "__main__":
    main()
