"""`megatron reshard` against a fake kubectl; a fake operator advances the recipe while the command waits."""

import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from megatron_operator.cli import reshard
from megatron_operator.cli.main import cli

FAKE_KUBECTL = """#!{python}
import json, pathlib, sys
file = pathlib.Path({folder!r}) / "recipe.json"
recipe = json.loads(file.read_text())
def merge(into, patch):
    for key, value in patch.items():
        if isinstance(value, dict):
            merge(into.setdefault(key, {{}}), value)
        elif value is None:
            into.pop(key, None)
        else:
            into[key] = value
if "patch" in sys.argv:
    patch = json.loads(sys.argv[sys.argv.index("--patch") + 1])
    with (file.parent / "patches").open("a") as patches:
        patches.write(json.dumps(patch["spec"]) + "\\n")
    merge(recipe, patch)
    recipe["metadata"]["generation"] += 1
    file.write_text(json.dumps(recipe))
print(json.dumps(recipe))
"""
ELASTIC = {"recovery": {"elastic": {"minCount": 16}}}
PIPELINE = ("--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "4")
LAYOUT = {"parallelism": {"tensorModelParallelSize": 2, "pipelineModelParallelSize": 4}}


class Cluster:
    """A recipe in a file, which the fake kubectl reads and patches."""

    def __init__(self, folder: Path) -> None:
        self._file, self._patches = folder / "recipe.json", folder / "patches"
        self.write(
            {
                "apiVersion": "megatron.training/v1beta1",
                "kind": "MegatronRecipe",
                "metadata": {"name": "run", "namespace": "research", "generation": 1},
                "spec": {
                    "recipe": "llama3-8b",
                    "accelerator": {"type": "h100-sxm", "count": 16},
                    "data": {"mockData": True},
                    "parallelism": {"tensorModelParallelSize": 4},
                },
                "status": {"phase": "Training", "observedGeneration": 1},
            }
        )
        self.saved(reshardable="false")

    def read(self) -> dict[str, Any]:
        return dict(json.loads(self._file.read_text()))

    def write(self, recipe: dict[str, Any]) -> None:
        self._file.write_text(json.dumps(recipe))

    def saved(self, reshardable: str) -> None:
        self.status(checkpoint={"iteration": 100, "contract": {"optimizerReshardable": reshardable}})

    def status(self, **fields: Any) -> None:
        recipe = self.read()
        recipe["status"] |= fields
        self.write(recipe)

    def observe(self, planned: str = "True", message: str = "TP 2 x PP 4") -> None:
        condition = {"type": "Planned", "status": planned, "reason": "Planned", "message": message}
        self.status(observedGeneration=self.read()["metadata"]["generation"], conditions=[condition])

    def patches(self) -> list[dict[str, Any]]:
        lines = self._patches.read_text().splitlines() if self._patches.exists() else []
        return [json.loads(line) for line in lines]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    program = tmp_path / "kubectl"
    program.write_text(FAKE_KUBECTL.format(python=sys.executable, folder=str(tmp_path)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Cluster(tmp_path)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what happens during the command's waits, one step in each; a further wait fails."""

    def during(*steps: Callable[[], object]) -> None:
        remaining = list(steps)
        monkeypatch.setattr(reshard.time, "sleep", lambda _seconds: remaining.pop(0)())

    during()
    return during


def megatron(*words: str) -> Result:
    return CliRunner().invoke(cli, ("reshard", "run", *words), catch_exceptions=False)


def test_a_run_without_elastic_saves_in_between(cluster: Cluster, meanwhile: Callable[..., None]) -> None:
    def only_the_first_edit() -> None:
        assert cluster.patches() == [ELASTIC]
        cluster.observe()
        cluster.saved(reshardable="fromNextCheckpoint")

    meanwhile(only_the_first_edit, lambda: cluster.saved(reshardable="true"), cluster.observe)
    result = megatron(*PIPELINE)
    assert result.exit_code == 0, result.output
    assert cluster.patches() == [ELASTIC, LAYOUT]
    assert "waits for the next checkpoint (Training, iteration 0)" in result.stderr
    assert "run: TP 2 x PP 4" in result.stdout
    assert "the next kubectl apply undoes them" in result.stdout


@pytest.mark.parametrize("status", [{"checkpoint": None}, {}])
def test_a_run_that_can_load_any_layout_gets_it_at_once(
    status: dict[str, Any], cluster: Cluster, meanwhile: Callable[..., None]
) -> None:
    cluster.saved(reshardable="true")
    cluster.status(**status)
    meanwhile(cluster.observe)
    assert megatron(*PIPELINE).exit_code == 0
    assert cluster.patches() == [LAYOUT]


def test_an_interrupted_command_goes_on_where_it_was(
    cluster: Cluster, meanwhile: Callable[..., None]
) -> None:
    def interrupt() -> None:
        cluster.saved(reshardable="fromNextCheckpoint")
        raise KeyboardInterrupt

    meanwhile(interrupt)
    result = megatron(*PIPELINE)
    assert result.exit_code == 2
    assert "repeat it, and it goes on from here" in result.stderr
    meanwhile(lambda: cluster.saved(reshardable="true"), cluster.observe)
    assert megatron(*PIPELINE).exit_code == 0
    assert cluster.patches() == [ELASTIC, LAYOUT]


def test_a_layout_that_the_operator_refuses_is_undone(
    cluster: Cluster, meanwhile: Callable[..., None]
) -> None:
    cluster.saved(reshardable="true")
    meanwhile(lambda: cluster.observe("False", "spec.parallelism: no room"))
    result = megatron(*PIPELINE)
    assert result.exit_code == 2
    assert "has its earlier layout again, in which it trains: spec.parallelism: no room" in result.stderr
    assert cluster.read()["spec"]["parallelism"] == {"tensorModelParallelSize": 4}


def test_the_smallest_count_follows_the_number_of_accelerators(
    cluster: Cluster, meanwhile: Callable[..., None]
) -> None:
    meanwhile(lambda: cluster.saved(reshardable="true"), cluster.observe)
    assert megatron(*PIPELINE, "--gpus", "32").exit_code == 0
    last = LAYOUT | {"accelerator": {"count": 32}, "recovery": {"elastic": {"minCount": 32}}}
    assert cluster.patches() == [ELASTIC, last]


@pytest.mark.usefixtures("meanwhile")
def test_a_dry_run_prints_the_edits_and_makes_none(cluster: Cluster) -> None:
    result = megatron(*PIPELINE, "--dry-run")
    assert result.stdout.splitlines() == [
        "# edit 1 of 2",
        *("spec:", "  recovery:", "    elastic:", "      minCount: 16"),
        "# then the run restarts and saves a checkpoint",
        "# edit 2 of 2",
        *("spec:", "  parallelism:", "    tensorModelParallelSize: 2", "    pipelineModelParallelSize: 4"),
    ]
    printed = json.loads(megatron(*PIPELINE, "--dry-run", "-o", "json").stdout)
    assert printed["edits"] == [ELASTIC, LAYOUT]
    assert printed["plan"].startswith("TP 2, PP 4, CP 1, DP 2 on 16 x h100-sxm")
    assert cluster.patches() == []


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({"phase": "Succeeded"}, "is Succeeded, so it saves nothing; start a new recipe"),
        ({"phase": "Suspended"}, "is Suspended, so it saves nothing; set suspend to false first"),
        (
            {"conditions": [{"type": "Planned", "status": "False", "message": "spec.data: no"}]},
            "is refused as it is: spec.data: no",
        ),
    ],
)
def test_a_run_that_cannot_save_is_left_as_it_is(
    status: dict[str, Any], message: str, cluster: Cluster
) -> None:
    cluster.status(**status)
    result = megatron(*PIPELINE)
    assert result.exit_code == 2
    assert message in result.stderr.replace(": start", "; start")
    assert cluster.patches() == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tensor-model-parallel-size", "3"), "TP 3 x PP 1 x CP 1 does not divide accelerator.count 16"),
        (("--tensor-model-parallel-size", "4"), "has this layout already"),
        ((), "name the new layout"),
        (("--tensor-model-parallel-size", "0"), "0 is below 1"),
        ((*PIPELINE, "-o", "json"), "--dry-run"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_before_an_edit(
    words: tuple[str, ...], message: str, cluster: Cluster
) -> None:
    result = megatron(*words)
    assert result.exit_code == 2
    assert message in result.output
    assert cluster.patches() == []
