"""history and logs: what they ask kubectl, and what they make of its answers. kubectl is a stand-in here."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from megatron_operator.cli.main import cli

RECIPE: dict[str, Any] = {
    "metadata": {"name": "run", "namespace": "research", "creationTimestamp": "2026-01-01T10:00:00Z"},
    "status": {
        "phase": "Training",
        "plan": {"perNode": 8},
        "progress": {"iteration": 1240, "trainIters": 100000},
        "checkpoint": {"iteration": 1200},
        "recovery": {
            "restarts": 1,
            "restartsByKind": {"rank": 1, "pod": 0},
            "goodput": 0.9712,
            "lostIterations": 3,
            "lostSeconds": {"detect": 1.0, "load": 9.0},
            "nodesAvoided": ["gpu-7"],
            "history": [
                {
                    "number": 1, "time": "2026-01-01T11:00:00Z", "kind": "rank", "pod": "worker-2",
                    "cause": "rank 25 was killed by SIGKILL", "rank": 25, "resumedFrom": 120,
                    "lostIterations": 3, "seconds": {"detect": 1.0, "load": 9.0},
                }
            ],
        },
    },
}  # fmt: skip
RECIPE["status"]["recovery"]["lastIncident"] = RECIPE["status"]["recovery"]["history"][0]
PODS = {
    "items": [
        {
            "metadata": {
                "name": f"run-{kind}-{index}",
                "creationTimestamp": "2026-01-01T10:00:00Z",
                "labels": {
                    "training.kubeflow.org/replica-type": kind,
                    "training.kubeflow.org/replica-index": str(index),
                },
            },
            "spec": {"nodeName": f"gpu-{index}"},
        }
        for kind, index in (("master", 0), ("worker", 0), ("worker", 1), ("worker", 2))
    ]
}

STAND_IN = """#!/bin/sh
echo "$@" >> {folder}/asked
for word in "$@"; do
    case $word in
        logs) echo "a line of the log"; exit 0 ;;
        pytorchjobs*) cat {folder}/job; exit 0 ;;
        pods|events) cat {folder}/$word; exit 0 ;;
        megatronrecipes*) cat {folder}/recipe && exit 0
            echo 'Error from server (NotFound): megatronrecipes "run" not found' >&2; exit 1 ;;
    esac
done
"""


class Kubectl:
    """Answers from files, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.say(recipe=RECIPE, pods=PODS, events={"items": []})

    def say(self, **answers: Any) -> None:
        for name, answer in answers.items():
            (self._folder / name).write_text(json.dumps(answer))

    def forget_recipe(self) -> None:
        (self._folder / "recipe").unlink()

    def asked(self) -> list[str]:
        return (self._folder / "asked").read_text().splitlines()


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    program = tmp_path / "kubectl"
    program.write_text(STAND_IN.format(folder=tmp_path))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Kubectl(tmp_path)


def megatron(*words: str) -> Result:
    return CliRunner().invoke(cli, words, catch_exceptions=False)


@pytest.mark.usefixtures("kubectl")
def test_history_tells_the_run_and_its_incidents() -> None:
    lines = megatron("history", "run").stdout.splitlines()
    assert lines[0].endswith("research/run, Training, iteration 1,240 of 100,000, checkpoint at 1,200")
    assert lines[1].split(maxsplit=1) == ["restarts", "1 (rank 1)"]
    assert lines[2].split(maxsplit=1)[1] == "3 iterations; time: 10 s (detect 1.0 s, load 9.0 s)"
    assert "97.1%" in lines[3]
    assert lines[4].split() == ["avoided", "gpu-7"]
    assert "1h00m  RankRestarted  rank 25 was killed by SIGKILL" in lines[7]
    assert "worker-2 rank 25; resumed from iteration 120, 3 iterations again" in lines[8]


@pytest.mark.usefixtures("kubectl")
def test_history_for_programs_has_the_names_of_the_status() -> None:
    said = json.loads(megatron("history", "run", "-o", "json").stdout)
    assert said["restartsByKind"] == {"rank": 1, "pod": 0}
    assert said["goodput"] == 0.9712
    [created, incident] = said["timeline"]
    assert created["reason"] == "Created"
    assert incident["incident"]["resumedFrom"] == 120


def test_the_namespace_and_the_context_are_kubectls(kubectl: Kubectl) -> None:
    megatron("history", "run", "-n", "research", "--context", "here", "--kubeconfig", "/a/file")
    said = "--namespace=research --context=here --kubeconfig=/a/file "
    assert all(asked.startswith(said) for asked in kubectl.asked())


@pytest.mark.parametrize("command", ["history", "logs"])
def test_a_recipe_that_is_not_there_is_refused_in_the_api_servers_words(
    command: str, kubectl: Kubectl
) -> None:
    kubectl.forget_recipe()
    result = megatron(command, "run", "-o", "json")
    assert result.exit_code == 2
    [error] = json.loads(result.stdout)["errors"]
    assert error["message"] == '(NotFound): megatronrecipes "run" not found'


def test_without_kubectl_its_absence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    result = megatron("logs", "run")
    assert result.exit_code == 2
    assert "kubectl: is not on PATH" in result.stderr


def test_logs_prints_the_log_of_the_pod_that_failed_first(kubectl: Kubectl) -> None:
    result = megatron("logs", "run")
    assert "run-worker-2 on gpu-2: rank 25 was killed by SIGKILL" in result.stderr
    assert kubectl.asked()[-1] == "logs --container pytorch run-worker-2 --tail=-1"


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("--rank", "9"), "logs --container pytorch run-worker-0 --tail=-1"),
        (("--follow", "--tail", "5"), "logs --container pytorch run-worker-2 --follow --tail=5"),
        (
            ("--all", "-f"),
            "logs --container pytorch --selector megatron.training/recipe=run,megatron.training/role=trainer"
            " --prefix --max-log-requests=1000 --follow --tail=-1",
        ),
    ],
)
def test_other_logs_can_be_asked_for(words: tuple[str, ...], asked: str, kubectl: Kubectl) -> None:
    assert megatron("logs", "run", *words).exit_code == 0
    assert kubectl.asked()[-1] == asked


@pytest.mark.usefixtures("kubectl")
def test_logs_says_which_pod_it_is_for_programs() -> None:
    said = json.loads(megatron("logs", "run", "-o", "json").stdout)
    assert (said["pod"], said["rank"], said["previous"]) == ("run-worker-2", 25, False)


def test_a_run_without_pods_leads_to_its_history(kubectl: Kubectl) -> None:
    kubectl.say(pods={"items": []})
    result = megatron("logs", "run")
    assert result.exit_code == 2
    assert "recipe run: has no pods (Training); see megatron history run" in result.stderr


@pytest.mark.usefixtures("kubectl")
def test_a_rank_that_no_pod_has_is_refused() -> None:
    assert "has no pod of rank 99" in megatron("logs", "run", "--rank", "99").stderr


def test_diff_compares_with_the_job_in_the_cluster(kubectl: Kubectl, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        """\
apiVersion: megatron.training/v1alpha1
kind: MegatronRecipe
metadata: {name: llama3.1-8b, namespace: research}
spec: {recipe: llama3-8b, data: {mockData: true}, accelerator: {type: h100-sxm, count: 8}}
"""
    )
    rendered = json.loads(megatron("render", "-f", str(recipe), "-o", "json").stdout)
    [job] = [manifest for manifest in rendered if manifest["kind"] == "PyTorchJob"]
    kubectl.say(job=job)
    assert megatron("diff", "-f", str(recipe), "--live").exit_code == 0
    name = job["metadata"]["name"]
    asked = f"--namespace=research get pytorchjobs.kubeflow.org {name} --output json"
    assert kubectl.asked()[-1] == asked
    changed = megatron("diff", "-f", str(recipe), "--live", "-n", "other", "--set", "training.lr=1e-4")
    assert changed.stdout.splitlines() == ["- --lr 0.0003", "+ --lr 0.0001"]
    assert kubectl.asked()[-1].startswith("--namespace=other ")
