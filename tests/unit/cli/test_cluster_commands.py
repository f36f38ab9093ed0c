"""history, logs and diff --live against a fake kubectl."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from megatron_operator.cli.completion import proposals
from megatron_operator.cli.main import cli

RECIPE: dict[str, Any] = {
    "metadata": {
        "name": "run", "namespace": "research", "uid": "u2", "creationTimestamp": "2026-01-01T10:00:00Z",
    },
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

FAKE_KUBECTL = """#!/bin/sh
echo "$@" >> {folder}/calls
for word in "$@"; do
    case $word in
        logs) echo "a line of the log"; [ -e {folder}/no-log ] && exit 1; exit 0 ;;
        pytorchjobs*) cat {folder}/job; exit 0 ;;
        pods|events) cat {folder}/$word; exit 0 ;;
        megatronrecipes*) cat {folder}/recipe && exit 0
            echo 'Error from server (NotFound): megatronrecipes "run" not found' >&2; exit 1 ;;
    esac
done
"""


class FakeKubectl:
    """Answers from files, and a record of the calls."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.answer(recipe=RECIPE, pods=PODS, events={"items": []})

    def answer(self, **answers: Any) -> None:
        for name, answer in answers.items():
            (self._folder / name).write_text(json.dumps(answer))

    def delete_recipe(self) -> None:
        (self._folder / "recipe").unlink()

    def calls(self) -> list[str]:
        return (self._folder / "calls").read_text().splitlines()


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    program = tmp_path / "kubectl"
    program.write_text(FAKE_KUBECTL.format(folder=tmp_path))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return FakeKubectl(tmp_path)


def megatron(*words: str) -> Result:
    return CliRunner().invoke(cli, words, catch_exceptions=False)


@pytest.mark.usefixtures("kubectl")
def test_history_prints_the_run_and_its_incidents() -> None:
    lines = megatron("history", "run").stdout.splitlines()
    assert lines[0].endswith("research/run, Training, iteration 1,240 of 100,000, checkpoint at 1,200")
    assert lines[1].split(maxsplit=1) == ["restarts", "1 (rank 1)"]
    assert lines[2].split(maxsplit=1)[1] == "3 iterations; time: 10 s (detect 1.0 s, load 9.0 s)"
    assert "97.1%" in lines[3]
    assert lines[4].split() == ["avoided", "gpu-7"]
    assert "1h00m  RankRestarted  rank 25 was killed by SIGKILL" in lines[7]
    assert "worker-2 rank 25; resumed from iteration 120, 3 iterations repeated" in lines[8]


@pytest.mark.usefixtures("kubectl")
def test_history_as_json_has_the_field_names_of_the_status() -> None:
    printed = json.loads(megatron("history", "run", "-o", "json").stdout)
    assert printed["restartsByKind"] == {"rank": 1, "pod": 0}
    assert printed["goodput"] == 0.9712
    [created, incident] = printed["timeline"]
    assert created["reason"] == "Created"
    assert incident["incident"]["resumedFrom"] == 120


VALIDATION = {
    "iteration": 1200, "loss": 2.25, "bestIteration": 1000, "bestLoss": 2.125,
    "evaluations": [
        {"iteration": 800, "loss": 2.5}, {"iteration": 1000, "loss": 2.125},
        {"iteration": 1200, "loss": 2.25},
    ],
}  # fmt: skip


def test_history_has_the_evaluations_with_the_best_marked(kubectl: FakeKubectl) -> None:
    kubectl.answer(recipe=RECIPE | {"status": RECIPE["status"] | {"validation": VALIDATION}})
    lines = megatron("history", "run").stdout.splitlines()
    first = lines.index("ITERATION  VALIDATION LOSS")
    assert lines[first + 1 : first + 5] == [
        "800        2.5", "1,000      2.125            lowest", "1,200      2.25", "",
    ]  # fmt: skip
    printed = json.loads(megatron("history", "run", "-o", "json").stdout)
    assert printed["evaluations"] == [
        {"iteration": 800, "loss": 2.5, "best": False},
        {"iteration": 1000, "loss": 2.125, "best": True},
        {"iteration": 1200, "loss": 2.25, "best": False},
    ]


@pytest.mark.usefixtures("kubectl")
def test_history_of_a_run_without_evaluations_has_no_table_of_them() -> None:
    assert "VALIDATION" not in megatron("history", "run").stdout
    assert json.loads(megatron("history", "run", "-o", "json").stdout)["evaluations"] == []


def test_history_asks_for_the_events_of_this_recipe_and_not_of_its_name(kubectl: FakeKubectl) -> None:
    megatron("history", "run")
    [asked] = [call for call in kubectl.calls() if "get events" in call]
    assert "--field-selector involvedObject.uid=u2 " in asked


def test_namespace_and_context_are_passed_to_kubectl(kubectl: FakeKubectl) -> None:
    megatron("history", "run", "-n", "research", "--context", "here", "--kubeconfig", "/a/file")
    flags = "--namespace=research --context=here --kubeconfig=/a/file "
    assert all(call.startswith(flags) for call in kubectl.calls())


@pytest.mark.parametrize("command", ["history", "logs"])
def test_a_missing_recipe_is_reported_with_the_api_servers_message(
    command: str, kubectl: FakeKubectl
) -> None:
    kubectl.delete_recipe()
    result = megatron(command, "run", "-o", "json")
    assert result.exit_code == 2
    [error] = json.loads(result.stdout)["errors"]
    assert error["message"] == '(NotFound): megatronrecipes "run" not found'


def test_a_missing_kubectl_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    result = megatron("logs", "run")
    assert result.exit_code == 2
    assert "kubectl: not found on PATH" in result.stderr


def test_logs_prints_the_log_of_the_pod_that_failed_first(kubectl: FakeKubectl) -> None:
    result = megatron("logs", "run")
    assert "run-worker-2 on gpu-2: rank 25 was killed by SIGKILL" in result.stderr
    assert kubectl.calls()[-1] == "logs --container pytorch run-worker-2 --tail=-1"


@pytest.mark.parametrize(
    ("words", "call"),
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
def test_logs_options_select_other_logs(words: tuple[str, ...], call: str, kubectl: FakeKubectl) -> None:
    assert megatron("logs", "run", *words).exit_code == 0
    assert kubectl.calls()[-1] == call


@pytest.mark.usefixtures("kubectl")
@pytest.mark.parametrize("words", [(), ("--all",)])
def test_logs_that_kubectl_cannot_print_are_an_error(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "no-log").touch()
    assert megatron("logs", "run", *words).exit_code == 2


def test_names_of_runs_are_proposed_from_the_namespace_and_cluster_of_the_words_before(
    kubectl: FakeKubectl,
) -> None:
    kubectl.answer(recipe={"items": [RECIPE]})
    words = ["status", "-n", "research", "--context", "east"]
    assert list(proposals(cli, words, "r")) == ["run", ":4"]
    [call] = kubectl.calls()
    assert call.startswith("--namespace=research --context=east get ")


@pytest.mark.usefixtures("kubectl")
def test_logs_as_json_names_the_pod() -> None:
    printed = json.loads(megatron("logs", "run", "-o", "json").stdout)
    assert (printed["pod"], printed["rank"], printed["previous"]) == ("run-worker-2", 25, False)


def test_a_run_without_pods_refers_to_its_history(kubectl: FakeKubectl) -> None:
    kubectl.answer(pods={"items": []})
    result = megatron("logs", "run")
    assert result.exit_code == 2
    assert "recipe run: has no pods (Training); see megatron history run" in result.stderr


def test_pods_of_a_deleted_recipe_of_the_name_are_not_those_of_the_run(kubectl: FakeKubectl) -> None:
    metadata = RECIPE["metadata"] | {"creationTimestamp": "2026-01-01T10:30:00Z"}
    kubectl.answer(recipe=RECIPE | {"metadata": metadata})
    assert "recipe run: has no pods (Training)" in megatron("logs", "run").stderr


@pytest.mark.usefixtures("kubectl")
def test_a_rank_without_a_pod_is_an_error() -> None:
    assert "has no pod of rank 99" in megatron("logs", "run", "--rank", "99").stderr


def test_diff_compares_with_the_job_in_the_cluster(kubectl: FakeKubectl, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        """\
apiVersion: megatron.training/v1beta1
kind: MegatronRecipe
metadata: {name: llama3.1-8b, namespace: research}
spec: {recipe: llama3-8b, data: {mockData: true}, accelerator: {type: h100-sxm, count: 8}}
"""
    )
    rendered = json.loads(megatron("render", "-f", str(recipe), "-o", "json").stdout)
    [job] = [manifest for manifest in rendered["items"] if manifest["kind"] == "PyTorchJob"]
    kubectl.answer(job=job)
    assert megatron("diff", "-f", str(recipe), "--live").exit_code == 0
    name = job["metadata"]["name"]
    call = f"--namespace=research get pytorchjobs.kubeflow.org {name} --output json"
    assert kubectl.calls()[-1] == call
    changed = megatron("diff", "-f", str(recipe), "--live", "-n", "other", "--set", "training.lr=1e-4")
    assert changed.stdout.splitlines() == ["- --lr 0.0003", "+ --lr 0.0001"]
    assert kubectl.calls()[-1].startswith("--namespace=other ")
