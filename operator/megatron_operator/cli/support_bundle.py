"""`megatron support-bundle`: what others need to find out what is wrong with a run, as one archive."""

import io
import tarfile
import time
from pathlib import Path

import click

from megatron_operator.cli import printing
from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.inputs import single_option
from megatron_operator.cli.kubectl import Kubectl, complete_run, kubectl_options

OPERATOR_NAMESPACE = "megatron-system"


@click.command("support-bundle")
@click.argument("name", shell_complete=complete_run)
@single_option(
    "--archive",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Archive to write; default NAME-support.tar.gz.",
)
@click.option(
    "--tail",
    type=click.IntRange(1, 1_000_000),
    default=2000,
    show_default=True,
    metavar="N",
    help="Last lines of each log.",
)
@click.option(
    "--pods",
    type=click.IntRange(1, 1000),
    default=16,
    show_default=True,
    metavar="N",
    help="Pods whose logs are read, the one that failed first before all others.",
)
@click.option(
    "--operator-namespace", default=OPERATOR_NAMESPACE, show_default=True, help="Namespace of the operator."
)
@click.option("--force", is_flag=True, help="Overwrite the archive.")
@kubectl_options
@printing.output_option
def command(
    name: str,
    archive: Path | None,
    tail: int,
    pods: int,
    operator_namespace: str,
    force: bool,
    kubectl: Kubectl,
    output: str,
) -> None:
    """Write recipe, job, pods, nodes, Events and logs of a run, and the operator's, into one archive.

    Reads with the rights of the kubeconfig and changes nothing; what cannot be read is listed in the archive.
    Secrets are never read, and values of variables and flags whose name looks like a credential are replaced.
    Logs are copied as they are: look through them before you pass them on.

    \b
    megatron support-bundle llama3-8b -n research
    megatron support-bundle llama3-8b --archive /tmp/run.tar.gz --pods 64
    """
    from megatron_operator.cli.bundle_contents import Request, collect

    target = archive or Path(f"{name}-support.tar.gz")
    if target.exists() and not force:
        raise CommandError(str(target), "exists", "choose another file with --archive, or give --force")
    contents = collect(kubectl, Request(name, operator_namespace, tail, pods))
    try:
        _write(target, f"{name}-support", contents.files)
    except OSError as error:
        fix = "choose another file with --archive"
        raise CommandError(str(target), error.strerror or str(error), fix) from None
    if output != "table":
        found = {"archive": str(target), "files": sorted(contents.files), "unread": contents.unread}
        printing.print_data(found, output)
        return
    for path in sorted(contents.files):
        click.echo(f"{len(contents.files[path].encode()):>10,}  {path}")
    for what, why in contents.unread.items():
        click.secho(f"not read: {what}: {why}", fg="yellow")
    click.echo(f"wrote {target}; look through the logs before you pass it on")


def _write(target: Path, folder: str, files: dict[str, str]) -> None:
    """Write the archive; readable by its owner alone, and whole or not at all. Raises OSError."""
    partial = target.with_name(f".{target.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        partial.touch(mode=0o600)
        with tarfile.open(partial, "w:gz") as bundle:
            for path, text in sorted(files.items()):
                data = text.encode(errors="replace")
                entry = tarfile.TarInfo(f"{folder}/{path}")
                entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
                bundle.addfile(entry, io.BytesIO(data))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
