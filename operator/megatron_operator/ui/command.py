"""`megatron ui`: serves the page, for a person on the shell or for a cluster."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.inputs import CATALOG_DIRECTORY, single_option
from megatron_operator.cli.kubectl import Kubectl, kubectl_options
from megatron_operator.cli.printing import exit_with_errors
from megatron_operator.cli.support_bundle import OPERATOR_NAMESPACE

if TYPE_CHECKING:
    from megatron_operator.sdk.connection import AsyncConnection
    from megatron_operator.ui.archive import Archive
    from megatron_operator.ui.journals import Journals

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@click.command("ui")
@click.option("-A", "--all-namespaces", is_flag=True, help="Runs of all namespaces.")
@single_option("--watch-namespaces", metavar="NAMES", help="Runs of these namespaces, comma-separated.")
@single_option("--port", type=click.IntRange(0, 65535), help="Default 8433; 0: any that is free.")
@single_option("--address", metavar="ADDRESS", help="Address to listen on; default 127.0.0.1.")
@click.option(
    "--token-review", is_flag=True,
    help="Serve others: who has a token of the cluster sees what the cluster lets them read.",
)  # fmt: skip
@single_option("--tls-certificate", type=click.Path(path_type=Path, exists=True), help="Serve HTTPS with it.")
@single_option("--tls-key", type=click.Path(path_type=Path, exists=True), help="The certificate's key.")
@single_option(
    "--archive",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Keep what is seen of runs in this SQLite file, and show deleted runs from it.",
)
@single_option(
    "--archive-size", metavar="SIZE", help="Room for the archive; default 1Gi. The oldest runs are dropped."
)
@click.option(
    "--journals",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Show runs from this checkpoint directory, or those in DIR, without a cluster. May be repeated.",
)
@single_option("--platform", type=click.Path(path_type=Path), help="Platform file of the cluster.")
@single_option("--catalog", type=CATALOG_DIRECTORY, help="Directory with additional recipes.")
@click.option(
    "--operator-namespace", default=OPERATOR_NAMESPACE, show_default=True, help="Namespace of the operator."
)
@kubectl_options
def command(
    all_namespaces: bool,
    watch_namespaces: str | None,
    port: int | None,
    address: str | None,
    token_review: bool,
    tls_certificate: Path | None,
    tls_key: Path | None,
    archive: Path | None,
    archive_size: str | None,
    journals: tuple[Path, ...],
    platform: Path | None,
    catalog: Path | None,
    operator_namespace: str,
    kubectl: Kubectl,
) -> None:
    """Serve a read-only web page of runs: progress, charts, incidents, layout, comparison.

    By default for you alone, on 127.0.0.1, with the rights of your kubeconfig: open the link that is printed.
    With --journals alone no cluster is asked; an option that names one, as -n, adds its runs.

    \b
    megatron ui -n research
    megatron ui --all-namespaces --port 9000
    megatron ui -n research --archive runs.sqlite
    megatron ui --journals /mnt/checkpoints
    """
    try:
        names = [name for name in (watch_namespaces or "").replace(",", " ").split() if name]
        if sum((bool(names), all_namespaces, kubectl.namespace is not None)) > 1:
            raise click.UsageError("give one of -n, --all-namespaces and --watch-namespaces")
        if (tls_certificate is None) != (tls_key is None):
            raise click.UsageError("give both --tls-certificate and --tls-key")
        host = address or LOOPBACK[0]
        if host not in LOOPBACK and journals:
            raise click.UsageError(
                f"--address {host} would show the journals to others; use 127.0.0.1, and reach it by a tunnel"
            )
        if host not in LOOPBACK and not token_review:
            raise click.UsageError(
                f"--address {host} would show the runs of your kubeconfig to others; add --token-review,"
                " or use 127.0.0.1"
            )
        if journals and token_review:
            raise click.UsageError(
                "--journals is for you alone: no right of the cluster restricts who sees them; leave out"
                " --token-review"
            )
        if archive_size is not None and archive is None:
            raise click.UsageError("--archive-size is of an archive; add --archive FILE")
        size = _bytes(archive_size or "1Gi")
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        cluster = bool(names) or all_namespaces or archive is not None or kubectl != Kubectl(None, None, None)
        tls = None if tls_certificate is None or tls_key is None else (tls_certificate, tls_key)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(
                _serve(
                    kubectl if cluster or not journals else None,
                    journals,
                    [*names] or ([None] if all_namespaces else []),
                    (host, 8433 if port is None else port),
                    tls,
                    token_review,
                    (platform, catalog),
                    None if archive is None else (archive, size),
                    operator_namespace,
                )
            )
    except CommandError as error:
        exit_with_errors(error.errors, "table")


def _bytes(size: str) -> int:
    """Bytes of `--archive-size`. Raises CommandError."""
    from megatron_operator.api.quantity import parse
    from megatron_operator.ui.archive import SMALLEST

    try:
        found = int(parse(size))
    except (ValueError, KeyError):
        raise CommandError("--archive-size", f"invalid quantity {size!r}", "use for example 2Gi") from None
    if found < SMALLEST:
        least = f"{SMALLEST >> 20}Mi"
        raise CommandError("--archive-size", f"{size} is below {least}", f"set at least {least}")
    return found


async def _serve(
    kubectl: Kubectl | None,
    journals: Sequence[Path],
    namespaces: list[str] | list[None],
    where: tuple[str, int],
    tls: tuple[Path, Path] | None,
    token_review: bool,
    planning: tuple[Path | None, Path | None],
    archived: tuple[Path, int] | None,
    operator_namespace: str,
) -> None:
    """Serve until the process is ended. Without namespaces, that of the context; without kubectl, no cluster.

    `archived` are the file of the archive and its size in bytes.
    """
    from megatron_operator.ui.access import Access, ClusterAccess, KeyAccess
    from megatron_operator.ui.app import Settings, application
    from megatron_operator.ui.deleted_use import DeletedUse
    from megatron_operator.ui.published import PublishedRecipes
    from megatron_operator.ui.runs import WatchedRuns
    from megatron_operator.ui.server import listen, server

    found = await _open_journals(journals)
    async with _connected(kubectl) as (connection, own):
        listening = listen(*where)
        archive = runs = deleted_use = None
        key = secrets.token_urlsafe(32)
        access: Access = KeyAccess(key, "the user of this shell")
        if connection is not None:
            archive = await _open_archive(connection, archived)
            runs = WatchedRuns(connection, namespaces or [own], archive)
            deleted_use = DeletedUse(connection, operator_namespace, namespaces or [own])
            access = ClusterAccess(connection) if token_review else KeyAccess(key)
        port = listening.getsockname()[1]
        settings = Settings(
            runs,
            access,
            PublishedRecipes(*planning),
            key_in_url=not token_review,
            secure_cookie=token_review or tls is not None,
            cookie=f"megatron-ui-{port}",
            archive=archive,
            deleted_use=deleted_use,
            journals=found,
        )

        @asynccontextmanager
        async def watching() -> AsyncIterator[None]:
            tasks = [] if runs is None else [asyncio.create_task(runs.follow())]
            if archive is not None:
                tasks.append(asyncio.create_task(archive.keep()))
            yield
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if archive is not None:
                await archive.flush()
                archive.close()

        host = f"[{where[0]}]" if ":" in where[0] else where[0]
        url = f"{'http' if tls is None else 'https'}://{host}:{port}/"
        click.echo(url if token_review else f"{url}sign-in?key={key}")
        await server(application(settings, watching), tls).serve([listening])


@asynccontextmanager
async def _connected(kubectl: Kubectl | None) -> "AsyncIterator[tuple[AsyncConnection | None, str | None]]":
    """The connection and the namespace of its context; None for both without kubectl. Raises CommandError."""
    from megatron_operator.sdk.connection import AsyncConnection
    from megatron_operator.sdk.errors import ClusterUnreachableError

    if kubectl is None:
        yield None, None
        return
    async with AsyncConnection(
        namespace=kubectl.namespace, context=kubectl.context, kubeconfig=kubectl.kubeconfig
    ) as connection:
        try:
            own = await connection.namespace()
        except ClusterUnreachableError as error:
            raise CommandError("kubeconfig", str(error), "choose one with --kubeconfig") from None
        yield connection, own


async def _open_journals(folders: Sequence[Path]) -> "Journals | None":
    """None without folders. Raises CommandError for one that has no journal or cannot be read."""
    from megatron_operator.ui.journal_files import JournalError
    from megatron_operator.ui.journals import Journals

    if not folders:
        return None
    try:
        return await asyncio.to_thread(Journals, folders)
    except JournalError as error:
        raise CommandError(f"--journals {error.path}", error.message, error.fix) from None


async def _open_archive(connection: "AsyncConnection", archived: tuple[Path, int] | None) -> "Archive | None":
    """Raises CommandError for a file that cannot be used."""
    from megatron_operator.ui.archive import Archive
    from megatron_operator.ui.archive_file import ArchiveError

    if archived is None:
        return None
    async with connection.client() as api:
        cluster = api.server
    path, size = archived
    try:
        return await asyncio.to_thread(Archive, path, cluster, size)
    except ArchiveError as error:
        raise CommandError(f"--archive {path}", error.message, error.fix) from None
