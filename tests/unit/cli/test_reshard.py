"""`megatron reshard` against a fake kubectl; a fake operator advances the recipe while the command waits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from megatron_operator.cli import reshard
from megatron_operator.cli.main import cli

from tests.unit.cli.kubectl_of_a_run import RECIPE, Cluster, as_planned

ELASTIC = {"recovery": {"elastic": {"minCount": 16}}}
PIPELINE = ("--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "4")
LAYOUT = {"parallelism": {"tensorModelParallelSize": 2, "pipelineModelParallelSize": 4}}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Cluster(tmp_path)


@pytest.fixture(autouse=True)
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what happens during the command's waits, one step in each; a further wait fails the test."""

    def during(*steps: Callable[[], object]) -> None:
        remaining = list(steps)

        def wait(_seconds: float) -> None:
            assert remaining, "the command waits for what has happened"
            remaining.pop(0)()

        monkeypatch.setattr(reshard.time, "sleep", wait)

    during()
    return during


def interrupt() -> None:
    raise KeyboardInterrupt


def megatron(*words: str) -> Result:
    return CliRunner().invoke(cli, ("reshard", "run", *words), catch_exceptions=False)


def refused(*words: str) -> str:
    """The error of the command."""
    result = megatron(*words)
    assert result.exit_code == 2, result.output
    return result.stderr


def test_a_run_without_elastic_saves_in_between(cluster: Cluster, meanwhile: Callable[..., None]) -> None:
    def only_the_first_edit() -> None:
        assert cluster.patches() == [ELASTIC]
        cluster.saved("fromNextCheckpoint")

    meanwhile(only_the_first_edit, lambda: cluster.saved("true"), cluster.observe)
    result = megatron(*PIPELINE)
    assert result.exit_code == 0, result.output
    assert cluster.patches() == [ELASTIC, LAYOUT]
    assert "waits for the next checkpoint (the edit is not observed yet)" in result.stderr
    assert "waits for the next checkpoint (Training, iteration 0)" in result.stderr
    assert "run: TP 2 x PP 4" in result.stdout
    assert "the next kubectl apply sets the earlier layout again" in result.stdout


def test_a_run_that_can_load_any_layout_gets_it_at_once(
    cluster: Cluster, meanwhile: Callable[..., None]
) -> None:
    cluster.saved("true")
    meanwhile(cluster.observe)
    assert megatron(*PIPELINE).exit_code == 0
    assert cluster.patches() == [LAYOUT]


def test_an_interrupted_command_goes_on_where_it_was_and_prints_all_edits(
    cluster: Cluster, meanwhile: Callable[..., None]
) -> None:
    def observed_and_interrupted() -> None:
        cluster.saved("fromNextCheckpoint")
        raise KeyboardInterrupt

    meanwhile(observed_and_interrupted)
    assert "repeat it, and it goes on from here" in refused(*PIPELINE)
    meanwhile(lambda: cluster.saved("true"), cluster.observe)
    result = megatron(*PIPELINE)
    assert result.exit_code == 0
    assert cluster.patches() == [ELASTIC, LAYOUT]
    assert "minCount: 16" in result.stdout


def test_a_layout_that_the_operator_refuses_is_undone(
    cluster: Cluster, meanwhile: Callable[..., None]
) -> None:
    cluster.saved("true")
    meanwhile(lambda: cluster.observe("False", "spec.parallelism: no room"))
    error = refused(*PIPELINE)
    assert "has its earlier layout again, in which it trains: spec.parallelism: no room" in error
    assert cluster.read()["spec"]["parallelism"] == {"tensorModelParallelSize": 4}


@pytest.mark.parametrize("undone", [True, False])
def test_a_layout_whose_verdict_is_not_known_or_not_undone_is_reported_with_how_to_undo_it(
    undone: bool, cluster: Cluster, meanwhile: Callable[..., None]
) -> None:
    def refuse_and_fail() -> None:
        cluster.observe("False", "no room")
        cluster.fail("patch", "Error from server (Timeout): too busy")

    cluster.saved("true")
    meanwhile(interrupt if undone else refuse_and_fail)
    error = refused(*PIPELINE, "-n", "research", "--context", "a b")
    assert "kubectl --namespace=research '--context=a b' patch megatronrecipe run --type merge" in error
    assert ("whether the operator takes it is not known" if undone else "undoing failed") in error
    given = json.loads(error.partition("-p '")[2].partition("'")[0])
    before = {"tensorModelParallelSize": 4, "pipelineModelParallelSize": None}
    assert given == {"spec": {"parallelism": before}}


def test_a_layout_that_was_refused_by_hand_is_taken_back_and_set_after_the_checkpoint(
    cluster: Cluster, meanwhile: Callable[..., None]
) -> None:
    cluster.edit(**LAYOUT)
    cluster.observe("False", "spec.parallelism: the optimizer state is sharded for 4")

    def train() -> None:
        cluster.observe()
        cluster.saved("true")

    meanwhile(train, cluster.observe)
    assert megatron(*PIPELINE).exit_code == 0
    back = {"parallelism": {"tensorModelParallelSize": 4, "pipelineModelParallelSize": 1}}
    assert cluster.patches() == [ELASTIC | back, LAYOUT]


def test_failed_reads_do_not_end_the_wait(cluster: Cluster, meanwhile: Callable[..., None]) -> None:
    def train() -> None:
        cluster.fail("get", None)
        cluster.saved("true")

    meanwhile(lambda: cluster.fail("get", "Unable to connect to the server"), train, cluster.observe)
    assert megatron(*PIPELINE).exit_code == 0


@pytest.mark.parametrize(
    ("during", "message"),
    [
        (
            lambda cluster: cluster.status(phase="Succeeded"),
            "is Succeeded, and has no checkpoint for another",
        ),
        (
            lambda cluster: cluster.status(phase="Exporting"),
            "is Exporting, and has no checkpoint for another",
        ),
        (lambda cluster: cluster.edit(recovery={}), "has no recovery.elastic any more"),
        (lambda cluster: cluster.observe("False", "spec.data: no"), "is refused as it is: spec.data: no"),
    ],
)
def test_a_run_that_will_not_save_is_not_waited_for(
    during: Callable[[Cluster], None], message: str, cluster: Cluster, meanwhile: Callable[..., None]
) -> None:
    meanwhile(lambda: during(cluster))
    assert message in refused(*PIPELINE)
    assert cluster.patches() == [ELASTIC]


def test_a_run_that_ends_with_its_checkpoint_is_left_as_it_is(
    cluster: Cluster, meanwhile: Callable[..., None]
) -> None:
    def end() -> None:
        cluster.saved("true")
        cluster.status(phase="Succeeded")

    meanwhile(end)
    assert "is Succeeded" in refused(*PIPELINE)
    assert cluster.patches() == [ELASTIC]


def test_the_smallest_count_follows_the_number_of_accelerators(
    cluster: Cluster, meanwhile: Callable[..., None]
) -> None:
    meanwhile(lambda: cluster.saved("true"), cluster.observe)
    assert megatron(*PIPELINE, "--gpus", "32").exit_code == 0
    last = LAYOUT | {"accelerator": {"count": 32}, "recovery": {"elastic": {"minCount": 32}}}
    assert cluster.patches() == [ELASTIC, last]


def test_a_dry_run_prints_the_edits_and_makes_none(cluster: Cluster) -> None:
    result = megatron(*PIPELINE, "--dry-run")
    assert result.stdout.splitlines() == [
        "# edit 1 of 2",
        *("spec:", "  recovery:", "    elastic:", "      minCount: 16"),
        "# when the run has restarted and saved a checkpoint",
        "# edit 2 of 2",
        *("spec:", "  parallelism:", "    tensorModelParallelSize: 2", "    pipelineModelParallelSize: 4"),
        "# planned: TP 2, PP 4, CP 1, DP 2 on 16 x h100-sxm",
    ]
    printed = json.loads(megatron(*PIPELINE, "--dry-run", "-o", "json").stdout)
    assert printed["edits"] == [ELASTIC, LAYOUT]
    assert printed["plan"] == "TP 2, PP 4, CP 1, DP 2 on 16 x h100-sxm"
    assert cluster.patches() == []


def test_sizes_that_are_left_to_the_planner_are_those_that_the_operator_keeps(cluster: Cluster) -> None:
    """Planned from nothing it has other sizes than beside the layout that it has."""
    spec = RECIPE["spec"] | {"recipe": "llama3-70b", "parallelism": {}}
    spec["accelerator"] = spec["accelerator"] | {"count": 64}
    cluster.begin(spec, "true")
    words = ("--tensor-model-parallel-size", "2", "--dry-run", "-o", "json")
    printed = json.loads(megatron(*words).stdout)["plan"]
    recipe = cluster.read()
    recipe["spec"]["parallelism"] = {"tensorModelParallelSize": 2}
    plan = as_planned(recipe).plan
    assert f"PP {plan.pipeline_model_parallel_size}, " in printed
    assert f"DP {plan.data_parallel_size} " in printed


def test_a_run_that_has_fewer_accelerators_now_is_planned_on_these(cluster: Cluster) -> None:
    elastic = {"minCount": 8}
    cluster.begin(RECIPE["spec"] | {"recovery": {"elastic": elastic}}, "true")
    shrunk = {"elastic": {"count": 8, "reason": "nodes", "since": "2026-01-01T00:00:00Z"}}
    cluster.status(recovery=shrunk)
    words = ("--tensor-model-parallel-size", "4", "--pipeline-model-parallel-size", "4")
    error = refused(*words)
    assert "has 8 of its 16 accelerators now: spec.parallelism.tensorModelParallelSize: TP 4 x PP 4" in error
    assert cluster.patches() == []


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({"phase": "Succeeded"}, "has trained to its end; start a new recipe"),
        ({"phase": "Exporting"}, "has trained to its end; start a new recipe"),
        ({"phase": "Suspended"}, "is suspended, and has to save in between; set suspend to false first"),
        ({"plan": None}, "has not been planned yet"),
    ],
)
def test_a_run_that_cannot_save_is_left_as_it_is(
    status: dict[str, Any], message: str, cluster: Cluster
) -> None:
    cluster.status(**status)
    assert message in refused(*PIPELINE)
    assert cluster.patches() == []


def test_a_suspended_run_that_can_load_any_layout_gets_it(
    cluster: Cluster, meanwhile: Callable[..., None]
) -> None:
    cluster.saved("true")
    cluster.status(phase="Suspended")
    meanwhile(cluster.observe)
    assert megatron(*PIPELINE).exit_code == 0


def adapters(**peft: Any) -> dict[str, Any]:
    init = {"from": {"huggingFace": {"path": "/checkpoints/model"}}}
    return RECIPE["spec"] | {"recipe": "llama3-8b-lora", "parallelism": {}, "init": init, "peft": peft}


def test_a_run_of_megatron_bridge_saves_in_between_as_well(
    cluster: Cluster, meanwhile: Callable[..., None]
) -> None:
    cluster.begin(adapters())
    meanwhile(lambda: cluster.saved("true"), cluster.observe)
    result = megatron("--pipeline-model-parallel-size", "2")
    assert result.exit_code == 0, result.output
    assert cluster.patches() == [ELASTIC, {"parallelism": {"pipelineModelParallelSize": 2}}]


def test_adapters_whose_checkpoints_load_at_one_tp_alone_have_no_way_to_another_layout(
    cluster: Cluster,
) -> None:
    cluster.begin(adapters(type="dora"))
    error = refused("--pipeline-model-parallel-size", "2")
    assert "spec.recovery.elastic: is set, and Megatron-Bridge does not load DoRA of linear_fc1" in error
    assert cluster.patches() == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tensor-model-parallel-size", "3"), "TP 3 x PP 1 x CP 1 does not divide accelerator.count 16"),
        (("--tensor-model-parallel-size", "4"), "has this layout already"),
        (("--pipeline-model-parallel-size", "1"), "has this layout already"),
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


def test_a_user_without_the_right_to_edit_is_refused_with_the_reason(cluster: Cluster) -> None:
    cluster.fail("patch", "Error from server (Forbidden): user may not patch\nresource megatronrecipes")
    error = refused(*PIPELINE)
    assert "(Forbidden): user may not patch resource megatronrecipes; ask for the right" in error
