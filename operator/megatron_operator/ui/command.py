"""`megatron ui`: serves the page, for a person on the shell or for a cluster."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click

from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.inputs import CATALOG_DIRECTORY, single_option
from megatron_operator.cli.kubectl import Kubectl, kubectl_options
from megatron_operator.cli.printing import exit_with_errors

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
@single_option("--platform", type=click.Path(path_type=Path), help="Platform file of the cluster.")
@single_option("--catalog", type=CATALOG_DIRECTORY, help="Directory with additional recipes.")
@kubectl_options
def command(
    all_namespaces: bool,
    watch_namespaces: str | None,
    port: int | None,
    address: str | None,
    token_review: bool,
    tls_certificate: Path | None,
    tls_key: Path | None,
    platform: Path | None,
    catalog: Path | None,
    kubectl: Kubectl,
) -> None:
    """Serve a read-only web page of runs: progress, charts, incidents, layout, comparison.

    By default for you alone, on 127.0.0.1, with the rights of your kubeconfig: open the link that is printed.

    \b
    megatron ui -n research
    megatron ui --all-namespaces --port 9000
    """
    try:
        names = [name for name in (watch_namespaces or "").replace(",", " ").split() if name]
        if sum((bool(names), all_namespaces, kubectl.namespace is not None)) > 1:
            raise click.UsageError("give one of -n, --all-namespaces and --watch-namespaces")
        if (tls_certificate is None) != (tls_key is None):
            raise click.UsageError("give both --tls-certificate and --tls-key")
        host = address or LOOPBACK[0]
        if host not in LOOPBACK and not token_review:
            raise click.UsageError(
                f"--address {host} would show the runs of your kubeconfig to others; add --token-review,"
                " or use 127.0.0.1"
            )
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        tls = None if tls_certificate is None or tls_key is None else (tls_certificate, tls_key)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(
                _serve(
                    kubectl,
                    [*names] or ([None] if all_namespaces else []),
                    (host, 8433 if port is None else port),
                    tls,
                    token_review,
                    (platform, catalog),
                )
            )
    except CommandError as error:
        exit_with_errors(error.errors, "table")


async def _serve(
    kubectl: Kubectl,
    namespaces: list[str] | list[None],
    where: tuple[str, int],
    tls: tuple[Path, Path] | None,
    token_review: bool,
    planning: tuple[Path | None, Path | None],
) -> None:
    """Serve until the process is ended. Without namespaces, that of the context."""
    from megatron_operator.sdk.connection import AsyncConnection
    from megatron_operator.sdk.errors import ClusterUnreachableError
    from megatron_operator.ui.access import ClusterAccess, KeyAccess
    from megatron_operator.ui.app import Settings, application
    from megatron_operator.ui.published import PublishedRecipes
    from megatron_operator.ui.runs import WatchedRuns
    from megatron_operator.ui.server import listen, server

    async with AsyncConnection(
        namespace=kubectl.namespace, context=kubectl.context, kubeconfig=kubectl.kubeconfig
    ) as connection:
        try:
            own = await connection.namespace()
        except ClusterUnreachableError as error:
            raise CommandError("kubeconfig", str(error), "choose one with --kubeconfig") from None
        runs = WatchedRuns(connection, namespaces or [own])
        listening = listen(*where)
        port = listening.getsockname()[1]
        key = secrets.token_urlsafe(32)
        settings = Settings(
            runs,
            ClusterAccess(connection) if token_review else KeyAccess(key),
            PublishedRecipes(*planning),
            key_in_url=not token_review,
            secure_cookie=token_review or tls is not None,
            cookie=f"megatron-ui-{port}",
        )

        @asynccontextmanager
        async def watching() -> AsyncIterator[None]:
            task = asyncio.create_task(runs.follow())
            yield
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        host = f"[{where[0]}]" if ":" in where[0] else where[0]
        url = f"{'http' if tls is None else 'https'}://{host}:{port}/"
        click.echo(url if token_review else f"{url}sign-in?key={key}")
        await server(application(settings, watching), tls).serve([listening])
