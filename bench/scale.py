"""What a fleet costs the operator: `python -m bench.scale --recipes 1000 --nodes 2000`.

Starts a control plane for each system: the training-operator alone with bare PyTorchJobs, a bare kopf
operator (`bench.scale_bare`), a plain client (`bench.scale_client`), this operator. API server, scheduler,
load and operators share the machine's cores. Requests are counted by the API server's audit log, processor
time and memory from /proc.
`--write` puts the table into docs/scale.md.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.scale_cluster import control_plane
from bench.scale_measure import (
    bare_kopf,
    plain_client,
    restart_alone,
    start_alone,
    this_operator,
    training_operator_alone,
)
from bench.scale_report import PAGE, Found, Scale, page, section, table

SYSTEMS: Final = ("training-operator", "kopf", "client", "operator")
RESTART: Final = "restart"
"""This operator's restart alone, which more runs can be measured with."""
START: Final = "start"
"""This operator until all jobs exist, and nothing after it."""


def measure(scale: Scale, systems: list[str], seconds: float, folder: Path) -> Found:
    """Measure each system on a control plane of its own; logs are written into `folder`."""
    found = Found()
    for system in systems:
        with control_plane(scale.nodes, folder) as bench:
            if system == "training-operator":
                found.training_operator = training_operator_alone(bench, scale.recipes)
            elif system == "kopf":
                found.kopf = bare_kopf(bench, scale.recipes)
            elif system == "client":
                found.client = plain_client(bench, scale.recipes)
            elif system == RESTART:
                found.restart = restart_alone(bench, scale.recipes)
            elif system == START:
                found.started = start_alone(bench, scale.recipes)
            else:
                found.operator = this_operator(bench, scale.recipes, seconds)
    return found


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench.scale", description=__doc__)
    parser.add_argument("--recipes", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=200, help="with 8 GPUs each; a recipe takes 4 GPUs")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the steady state")
    parser.add_argument("--systems", nargs="+", choices=[*SYSTEMS, START, RESTART], default=list(SYSTEMS))
    parser.add_argument("--logs", type=Path, help="directory for logs; default: a temporary one")
    parser.add_argument("--write", action="store_true", help=f"write the table to docs/{PAGE.name}")
    options = parser.parse_args(argv)
    if options.nodes * 2 < options.recipes:
        parser.error(f"--nodes {options.nodes} have no room for {options.recipes} recipes; 2 fit on a node")
    if options.write and set(options.systems) != set(SYSTEMS):
        parser.error("--write needs all systems")
    scale = Scale(options.recipes, options.nodes)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = measure(scale, options.systems, options.seconds, folder)
    print("\n".join(table(scale, found)))
    if options.write:
        command = f'make bench-scale BENCH="--recipes {scale.recipes} --nodes {scale.nodes} --write"'
        PAGE.write_text(page(PAGE.read_text(), section(scale, found, command)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
