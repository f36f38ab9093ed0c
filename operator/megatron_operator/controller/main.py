"""The operator's entry point: `megatron-operator`, or `python -m megatron_operator.controller.main`."""

import asyncio
import logging
import os
import socket
import threading
from typing import Any
from wsgiref.simple_server import WSGIServer

import click
import uvloop
from prometheus_client import start_http_server

from megatron_operator.api import json_documents
from megatron_operator.controller.process import OperatorProcess
from megatron_operator.controller.settings import DEFAULT_PROGRESS_URL, LeaseTimes, Settings

TIMES = LeaseTimes()


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.replace(",", " ").split() if name)


def serve_metrics(port: int) -> tuple[WSGIServer, threading.Thread]:
    """Serve the metrics on all addresses, those of IPv6 too where there are any. Raises OSError."""
    return start_http_server(port, "::" if socket.has_dualstack_ipv6() else "0.0.0.0")


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
@click.option("--jobsets", is_flag=True, help="Handle JobSets, for the platform's jobBackend jobset.")
@click.option("--trainjobs", is_flag=True, help="Handle TrainJobs, for the platform's jobBackend trainjob.")
@click.option("--progress-url", default=DEFAULT_PROGRESS_URL, help="URL of a pod's progress.")
@click.option("--progress-interval", default=5.0, help="Seconds between two polls of a run's progress.")
@click.option("--workers", default=32, help="Recipes reconciled concurrently; new ones four times as many.")
@click.option("--liveness-port", default=8080, help="Port of /healthz and /readyz; 0: none.")
@click.option("--metrics-port", default=0, help="Port of the operator's Prometheus metrics; 0: none.")
@click.option("--webhook-port", default=0, help="Port of the validating webhook; 0: none.")
@click.option("--webhook-certificates", default="/certificates", help="Directory with tls.crt and tls.key.")
@click.option("--leader-elect", is_flag=True, help="Act only while holding a Lease: for several replicas.")
@click.option("--leader-elect-resource-name", "lease_name", default="megatron-operator", help="Its name.")
@click.option(
    "--leader-elect-lease-duration",
    default=TIMES.lease_duration,
    help="Seconds that others wait after they have last seen the Lease change.",
)
@click.option(
    "--leader-elect-renew-deadline",
    default=TIMES.renew_deadline,
    help="Seconds for which the leader writes after its last renewal.",
)
@click.option(
    "--leader-elect-retry-period",
    default=TIMES.retry_period,
    help="Seconds between two attempts to acquire or renew.",
)
@click.option("--log-level", default="INFO", help="Log level.")
def main(
    watch_namespaces: str,
    metrics_port: int,
    log_level: str,
    leader_elect_lease_duration: int,
    leader_elect_renew_deadline: int,
    leader_elect_retry_period: int,
    **options: Any,
) -> None:
    """Turn MegatronRecipe objects into training runs and keep them running."""
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("kopf").setLevel(max(logging.getLogger().level, logging.WARNING))
    try:
        times = LeaseTimes(
            leader_elect_lease_duration, leader_elect_renew_deadline, leader_elect_retry_period
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    settings = Settings(watch_namespaces=_names(watch_namespaces), lease_times=times, **options)
    json_documents.make_default()
    if metrics_port:
        serve_metrics(metrics_port)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(OperatorProcess(settings).run())


if __name__ == "__main__":
    main()
