"""`make demo`: from nothing to a recovered training run, told as it happens.

With KUBECONFIG set, the cluster it names is used instead of a local one; MEGATRON_OPERATOR_IMAGE and
MEGATRON_TRAINER_IMAGE then name images that its nodes can pull.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from demo.report import show, summarize, write
from testkit.kubectl import ROOT, Cluster, CommandFailed
from testkit.training_run import Run, Status

NAMESPACE = "megatron-demo"
OPERATOR_NAMESPACE = "megatron-system"
EXAMPLE = ROOT / "examples" / "tiny-gpt.yaml"
OUTPUT = ROOT / "demo-output"
KILL_AT = 0.6
"""Part of the run after which the pod is killed."""

console = Console(soft_wrap=True)


class Clock:
    """Says what is being done and how long it took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str, what: str) -> Iterator[None]:
        console.rule(f"[bold]{len(self.seconds) + 1}. {what}", align="left")
        started = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - started
        console.print(f"[green]done[/green] in {self.seconds[name]:.1f} s")


def connect() -> Path:
    """The kubeconfig of the cluster to be used: KUBECONFIG's, else that of the local cluster with images.

    Starting a local cluster takes minutes the first time and a second when it runs already.
    """
    given = os.environ.get("KUBECONFIG")
    if given:
        return Path(given).resolve()
    for command in ("up", "images"):
        subprocess.run([sys.executable, "-m", "localcluster", command], check=True, cwd=ROOT)
    return ROOT / ".cluster" / "full" / "kubeconfig"


def install(cluster: Cluster) -> None:
    """helm install, with the values of the local cluster unless the user brought one."""
    values = ["-f", "charts/megatron-operator/values-local-simulated.yaml"]
    for name, value in (
        ("image", os.environ.get("MEGATRON_OPERATOR_IMAGE")),
        ("platform.image", os.environ.get("MEGATRON_TRAINER_IMAGE")),
    ):
        if value:
            values += ["--set", f"{name}={value}"]
    cluster.helm(
        "upgrade", "--install", "megatron-operator", "charts/megatron-operator",
        "--namespace", OPERATOR_NAMESPACE, "--create-namespace", *values, "--wait", "--timeout", "3m",
    )  # fmt: skip


def show_status(progress: Progress, bar: TaskID, status: Status) -> None:
    loss = "" if status.loss is None else f"loss {status.loss:.4f}"
    speed = "" if status.tokens_per_second is None else f"{status.tokens_per_second:,.0f} tokens/s"
    progress.update(
        bar,
        completed=status.iteration or 0,
        phase=status.phase,
        figures=f"{loss}  {speed}",
    )


def train(run: Run) -> float:
    """Follow the run to its end and kill a worker pod on the way; the time of the kill."""
    columns = (
        TextColumn("[bold]{task.fields[phase]:<11}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
    )
    killed_at = 0.0
    phase = ""
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("train", total=run.train_iters, phase="Pending", figures="")
        for status in run.follow(seconds=900):
            show_status(progress, bar, status)
            if status.phase != phase:
                phase = status.phase
                progress.console.print(Text(f"   {phase}{': ' + status.message if status.message else ''}"))
            ripe = (status.iteration or 0) >= KILL_AT * run.train_iters and (status.checkpoint or 0) > 0
            if not killed_at and ripe and phase == "Training":
                victim = f"{run.name}-worker-0"
                progress.console.print(
                    f"[red]   killing pod {victim} at iteration {status.iteration}; "
                    f"the newest checkpoint is of iteration {status.checkpoint}[/red]"
                )
                killed_at = run.kill_pod(victim)
    if phase != "Succeeded":
        raise CommandFailed(f"the run ended as {phase}: {status.message}")
    return killed_at


def main() -> int:
    clock = Clock()
    given = os.environ.get("KUBECONFIG")
    with clock.step(
        "cluster", f"KUBECONFIG={given}" if given else "A real Kubernetes: two nodes, 8 simulated GPUs each"
    ):
        kubeconfig = connect()
    cluster = Cluster(kubeconfig, NAMESPACE, console)
    with clock.step("install", "The operator, from its chart"):
        install(cluster)
    run = Run(cluster, EXAMPLE)
    with clock.step("apply", "The recipe: a tiny GPT on Python's own source, TP 2 x DP 2"):
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        run.delete()
        console.print(EXAMPLE.read_text(), style="dim", highlight=False)
        cluster.kubectl("apply", "-f", str(EXAMPLE.relative_to(ROOT)), show=True)
    with clock.step("train", "The run, and a pod killed in the middle of it"):
        killed_at = train(run)
    with clock.step("report", "What happened"):
        steps = run.history()
        training = run.manifest["spec"]["training"]
        tokens = training["globalBatchSize"] * training["seqLength"]
        summary = summarize("Succeeded", steps, killed_at, run.status().restarts, tokens, clock.seconds)
        show(summary, console)
        for path in write(summary, steps, killed_at, OUTPUT):
            console.print(f"wrote {path.relative_to(ROOT)}")
    if not given:
        console.print("The cluster runs on; `make cluster-down` stops it and leaves nothing behind.")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (CommandFailed, TimeoutError, RuntimeError) as error:
        console.print(Text(f"demo: {error}", style="red"))
        sys.exit(1)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
