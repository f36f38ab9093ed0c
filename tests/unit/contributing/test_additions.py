"""Follows the instructions of CONTRIBUTING.md: each addition is made to a copy of the package and used."""

import json
from typing import Any

FAMILY = """\
# Models of the Example family.
entries:
  example-1b:
    extends: llama
    description: A model of another family
    model:
      numLayers: 16
      hiddenSize: 2048
      numAttentionHeads: 16
      ffnHiddenSize: 5632
      maxPositionEmbeddings: 4096
      vocabSize: 32000
    training:
      seqLength: 4096
      globalBatchSize: 256
      trainIters: 1000
      lr: 3.0e-4
      lrWarmupIters: 100
    layouts:
      - accelerators: [h100-sxm]
        count: 8
        parallelism: {tensorModelParallelSize: 2, pipelineModelParallelSize: 1}
        source: an example
    source: an example
"""

ACCELERATOR = """\
x900:
  architecture: hopper
  memoryGiB: 190
  bf16Teraflops: 2000
  fp8Teraflops: 4000
  memoryGBps: 8000
  linkGBps: 900
  domain: 16
  networkGBps: 100
  source: X900 data sheet
"""

COMMAND = '''\
"""`megatron gpus`: the accelerators that a plan takes."""

import click

from megatron_operator.cli.inputs import RecipeOptions, recipe_options


@click.command("gpus")
@recipe_options
def command(options: RecipeOptions) -> None:
    """Print the number of accelerators."""
    click.echo(f"{options.gpus} x {options.accelerator}")
'''


def test_a_model_family_is_one_data_file(package: Any) -> None:
    package.write("catalog/data/example.yaml", FAMILY)

    listed = json.loads(package.megatron("recipes", "list", "--family", "example", "-o", "json"))
    assert [entry["name"] for entry in listed] == ["example-1b"]

    recipe = ("--recipe", "example-1b", "--gpus", "8", "--accelerator", "h100-sxm")
    plan = json.loads(package.megatron("plan", *recipe, "-o", "json"))
    assert plan["tensorModelParallelSize"] == 2, "the published layout is used"
    assert plan["dataParallelSize"] == 4
    assert "--num-layers 16" in " ".join(package.megatron("args", *recipe).split())


def test_a_family_with_an_invalid_entry_is_reported_by_the_catalogs_check(package: Any) -> None:
    package.write("catalog/data/example.yaml", FAMILY.replace("extends: llama", "extends: llamma"))
    problems = package.python("from megatron_operator import catalog; print(*catalog.load().check())")
    assert "example.yaml" in problems
    assert "llamma" in problems


def test_an_accelerator_is_one_entry_of_the_table(package: Any) -> None:
    package.append("planner/data/accelerators.yaml", ACCELERATOR)

    plan = json.loads(
        package.megatron(
            "plan", "--recipe", "llama3-8b", "--gpus", "8", "--accelerator", "x900", "-o", "json"
        )
    )
    assert plan["memoryPerGpu"]["capacity"] == 190 * 2**30

    faster = plan["expected"]
    slower = json.loads(package.megatron("plan", "--recipe", "llama3-8b", "--gpus", "8", "-o", "json"))[
        "expected"
    ]
    assert faster != slower, "the estimate uses the accelerator's own speed"


def test_a_command_is_one_module_and_one_line(package: Any) -> None:
    package.write("cli/gpus.py", COMMAND)
    package.insert_after("cli/main.py", '"completion": "', '    "gpus": "Print the number of accelerators.",')

    assert "gpus" in package.megatron("--help")
    used = package.megatron("gpus", "--recipe", "llama3-8b", "--gpus", "8", "--accelerator", "h200")
    assert used == "8 x h200\n"


RULE = '''\
def _slow_steps(observation: Observation) -> Decision | None:
    """A step of more than an hour restarts the gang."""
    heartbeat = observation.heartbeat
    if heartbeat is None or (heartbeat.step_seconds or 0.0) <= 3600:
        return None
    return _restart(observation, f"a step took {heartbeat.step_seconds:.0f} s")


'''

DECIDE = """\
from megatron_operator.lifecycle.observation import Heartbeat, History, Limits, Observation, PodPhase, PodView
from megatron_operator.lifecycle.recovery_policy import decide

def decision(step_seconds, deleting=False):
    pods = tuple(PodView(rank, PodPhase.RUNNING, 1000.0, deleting) for rank in range(2))
    heartbeat = Heartbeat("training", 5, step_seconds, answered=99_999.0, moved=99_999.0)
    limits = Limits.parse(max_restarts=3, rendezvous_timeout=600, hang_timeout="auto")
    return decide(Observation(100_000.0, 2, pods, heartbeat, History("run"), limits))

print(type(decision(1.0)).__name__, type(decision(7200.0)).__name__, type(decision(7200.0, True)).__name__)
"""


def test_a_recovery_rule_is_one_function_and_its_place_in_the_order(package: Any) -> None:
    assert package.python(DECIDE) == "Wait Wait Wait\n"
    policy = "lifecycle/recovery_policy.py"
    package.insert_before(policy, r"^Rule = ", RULE)
    package.insert_after(policy, r"^    _incomplete,", "    _slow_steps,")
    assert package.python(DECIDE) == "Wait RestartGang Wait\n", "rules before it still come first"
