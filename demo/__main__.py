"""`make demo`: from an empty machine to a training run that recovers from a killed pod.

The same recipe then trains undisturbed, and the losses of both runs are compared iteration by iteration.

With KUBECONFIG set, the demo uses that cluster instead of a local one; MEGATRON_OPERATOR_IMAGE and
MEGATRON_TRAINER_IMAGE then name images that its nodes can pull.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from demo.report import show, summarize, write
from testkit.errors import RunEndedError, TestkitError
from testkit.installation import connect, install_operator
from testkit.kubectl import ROOT, Kubectl
from testkit.training_run import RunStatus, TrainingRun

NAMESPACE = "megatron-demo"
EXAMPLE = ROOT / "examples" / "tiny-gpt.yaml"
UNDISTURBED = "tiny-gpt-undisturbed"
OUTPUT = ROOT / "demo-output"
KILL_AT = 0.6
"""Part of the run after which the pod is killed."""

console = Console(soft_wrap=True)


class StepTimer:
    """Prints a heading for each step of the demo and measures its duration."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """Duration by name of the step."""

    @contextmanager
    def step(self, name: str, heading: str) -> Iterator[None]:
        """Measure the block as step `name`."""
        console.rule(f"[bold]{len(self.seconds) + 1}. {heading}", align="left")
        started = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - started
        console.print(f"[green]done[/green] in {self.seconds[name]:.1f} s")


def show_status(progress: Progress, bar: TaskID, status: RunStatus) -> None:
    """Move the progress bar to the run's iteration."""
    loss = "" if status.loss is None else f"loss {status.loss:.4f}"
    speed = "" if status.tokens_per_second is None else f"{status.tokens_per_second:,.0f} tokens/s"
    progress.update(
        bar,
        completed=status.iteration or 0,
        phase=status.phase,
        numbers=f"{loss}  {speed}",
    )


def train(run: TrainingRun, *, kill: bool) -> float:
    """Follow the run to its end; with `kill` a worker pod is killed on the way.

    Returns the time of the kill, seconds since the epoch. Raises RunEndedError when the run does not succeed,
    TimeoutError when it does not end.
    """
    columns = (
        TextColumn("[bold]{task.fields[phase]:<11}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeElapsedColumn(),
    )
    killed_at = 0.0
    phase = ""
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("train", total=run.train_iters, phase="Pending", numbers="")
        for status in run.follow(seconds=900):
            show_status(progress, bar, status)
            if status.phase != phase:
                phase = status.phase
                progress.console.print(Text(f"   {phase}{': ' + status.message if status.message else ''}"))
            due = (status.iteration or 0) >= KILL_AT * run.train_iters and (status.checkpoint or 0) > 0
            if kill and not killed_at and due and phase == "Training":
                victim = f"{run.name}-worker-0"
                progress.console.print(
                    f"[red]   killing pod {victim} after {KILL_AT:.0%} of the run; "
                    f"newest checkpoint: iteration {status.checkpoint}[/red]"
                )
                killed_at = run.kill_pod(victim)
    if phase != "Succeeded":
        raise RunEndedError(f"the run ended as {phase}: {status.message}")
    return killed_at


def main() -> int:
    """The six steps of the demo. Returns the exit code: 1 if the losses of the two runs differ."""
    timer = StepTimer()
    given = os.environ.get("KUBECONFIG")
    heading = f"KUBECONFIG={given}" if given else "A local Kubernetes: two nodes, 8 simulated GPUs each"
    with timer.step("cluster", heading):
        kubeconfig = connect()
    kubectl = Kubectl(kubeconfig, NAMESPACE, console)
    with timer.step("install", "Install the operator with its Helm chart"):
        install_operator(kubectl)
    run, again = TrainingRun(kubectl, EXAMPLE), TrainingRun(kubectl, EXAMPLE, UNDISTURBED)
    with timer.step("apply", "Apply a recipe: a tiny GPT on Python's source code, TP 2 x DP 2"):
        kubectl.create_namespace()
        run.delete()
        again.delete()
        console.print(EXAMPLE.read_text(), style="dim", highlight=False)
        kubectl.run("apply", "-f", str(EXAMPLE.relative_to(ROOT)), show=True)
    with timer.step("train", "Train, and kill a pod on the way"):
        killed_at = train(run, kill=True)
    with timer.step("train undisturbed", f"Train the same recipe undisturbed, as {UNDISTURBED}"):
        again.apply()
        train(again, kill=False)
    with timer.step("report", "Results"):
        records, undisturbed = run.history(), again.history()
        training = run.manifest["spec"]["training"]
        tokens = training["globalBatchSize"] * training["seqLength"]
        restarts = run.status().restarts
        summary = summarize("Succeeded", records, undisturbed, killed_at, restarts, tokens, timer.seconds)
        show(summary, console)
        for path in write(summary, records, undisturbed, killed_at, OUTPUT):
            console.print(f"wrote {path.relative_to(ROOT)}")
    if not given:
        console.print("The cluster is still running; `make cluster-down` removes it completely.")
    if summary.different_losses:
        first = summary.different_losses[0]
        console.print(f"[red]the two runs differ from iteration {first} on; see summary.json[/red]")
    return 1 if summary.different_losses else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (TimeoutError, TestkitError) as error:
        console.print(Text(f"demo: {error}", style="red"))
        sys.exit(1)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
