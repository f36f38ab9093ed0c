"""The operator's entry point: `megatron-operator`, or `python -m megatron_operator.controller.main`."""

import asyncio
import logging
import os
from typing import Any

import click
import kopf
import uvloop
from prometheus_client import start_http_server

from megatron_operator.controller.handlers import Operator, register
from megatron_operator.controller.settings import DEFAULT_PROGRESS_URL, Settings


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.replace(",", " ").split() if name)


@click.command(context_settings={"auto_envvar_prefix": "MEGATRON_OPERATOR", "show_default": True})
@click.option(
    "--namespace",
    default=lambda: os.environ.get("POD_NAMESPACE", "megatron-system"),
    help="The operator's own namespace.",
)
@click.option("--watch-namespaces", default="", help="Namespaces to serve, comma-separated; empty: all.")
@click.option("--platform-config-map", default="megatron-platform", help="ConfigMap with platform.yaml.")
@click.option("--catalog-config-map", default="megatron-catalog", help="ConfigMap with additional recipes.")
@click.option("--node-discovery", is_flag=True, help="Discover accelerators from node labels.")
@click.option("--progress-url", default=DEFAULT_PROGRESS_URL, help="URL of a pod's progress.")
@click.option("--progress-interval", default=5.0, help="Seconds between two polls of a run's progress.")
@click.option("--workers", default=8, help="Recipes that are reconciled concurrently.")
@click.option("--liveness-port", default=8080, help="Port of /healthz; 0: none.")
@click.option("--metrics-port", default=0, help="Port of the operator's Prometheus metrics; 0: none.")
@click.option("--webhook-port", default=0, help="Port of the validating webhook; 0: none.")
@click.option("--webhook-certificates", default="/certificates", help="Directory with tls.crt and tls.key.")
@click.option("--log-level", default="INFO", help="Log level.")
def main(
    watch_namespaces: str, liveness_port: int, metrics_port: int, log_level: str, **options: Any
) -> None:
    """Turn MegatronRecipe objects into training runs and keep them running."""
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("kopf").setLevel(max(logging.getLogger().level, logging.WARNING))
    settings = Settings(watch_namespaces=_names(watch_namespaces), **options)
    if metrics_port:
        start_http_server(metrics_port)
    registry = kopf.OperatorRegistry()
    register(registry, Operator(settings))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(
            kopf.operator(
                registry=registry,
                standalone=True,
                clusterwide=not settings.watch_namespaces,
                namespaces=settings.watch_namespaces,
                liveness_endpoint=f"http://0.0.0.0:{liveness_port}/healthz" if liveness_port else None,
            )
        )


if __name__ == "__main__":
    main()
