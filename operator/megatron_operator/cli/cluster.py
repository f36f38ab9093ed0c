"""`megatron cluster check`: what a cluster lacks for runs, and how to get it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megatron_operator.cli import printing
from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.inputs import single_option
from megatron_operator.cli.kubectl import Kubectl, kubectl_options

if TYPE_CHECKING:
    from megatron_operator.cli.cluster_objects import ClusterObjects

EXIT_MISSING = 1
_COLORS = {"ok": "green", "missing": "red", "warning": "yellow", "unknown": "cyan"}


@click.group("cluster")
def command() -> None:
    """Inspect a cluster."""


@command.command("check", short_help="Report what the cluster lacks and how to get it.")
@single_option("--platform", type=click.Path(path_type=Path), help="Platform file to compare the nodes with.")
@kubectl_options
@printing.output_option
def check(platform: Path | None, kubectl: Kubectl, output: str) -> None:
    """Report what the cluster lacks and how to get it; exits with 1 if something required is missing.

    Reads with the rights of the kubeconfig and changes nothing. With --platform, the nodes are compared with
    the profiles of the platform file.

    \b
    megatron cluster check -n research
    megatron cluster check --platform platform.yaml
    """
    from megatron_operator.cli.cluster_checks import run_checks
    from megatron_operator.cli.planning import load_platform
    from megatron_operator.cli.tables import print_wrapped

    loaded = None if platform is None else load_platform(platform)
    findings = run_checks(_read(kubectl), loaded)
    missing = [each for each in findings if each.state == "missing"]
    if output != "table":
        listed = [
            {"check": each.check, "state": each.state, "message": each.message, "fix": each.fix}
            for each in findings
        ]
        printing.print_data({"ready": not missing, "checks": listed}, output)
    else:
        for each in findings:
            state = click.style(each.state, fg=_COLORS[each.state], bold=each.state != "ok")
            click.echo(f"{state}{' ' * (9 - len(each.state))}{each.check}")
            print_wrapped(each.message, indent=9)
            if each.fix:
                print_wrapped(f"-> {each.fix}", indent=9)
        click.echo()
        count = len(missing)
        click.echo("nothing required is missing" if not count else f"missing: {count}")
    if missing:
        raise click.exceptions.Exit(EXIT_MISSING)


def _read(kubectl: Kubectl) -> "ClusterObjects":
    """The objects of all checks. Raises CommandError if the API server cannot be reached."""
    from megatron_operator.cli.cluster_checks import RECIPES
    from megatron_operator.cli.cluster_objects import ClusterObjects
    from megatron_operator.cli.gang_checks import GANG_SCHEDULERS
    from megatron_operator.cli.job_needs import JOBSETS, PYTORCHJOBS, TRAINJOBS

    version = kubectl.version()
    namespace = kubectl.namespace or kubectl.current_namespace()
    requests = {
        "crds": ["crd", PYTORCHJOBS, JOBSETS, TRAINJOBS, RECIPES, *GANG_SCHEDULERS],
        "deployments": ["deployments", "--all-namespaces"],
        "storage_classes": ["storageclasses"],
        "nodes": ["nodes"],
        "namespaces": ["namespace", namespace],
    }
    found: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for name, words in requests.items():
        try:
            found[name] = kubectl.find(words)
        except CommandError as error:
            refused[name] = error.errors[0].message
    return ClusterObjects(namespace, version, **found, refused=refused)
