"""Each flag that `megatronArgs` takes, alone in a recipe: what Megatron refuses, the operator refuses too."""

import argparse
from collections.abc import Iterator
from functools import cache
from typing import Any

import cases
import pytest
import reads
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.planner.checks.passthrough import megatron_flags
from stages import Megatron, NotAccepted

DENSE = {"recipe": "llama3-8b", "accelerator": {"type": "h100-sxm", "count": 8}, "data": {"mockData": True}}
EXPERTS = {
    "recipe": "mixtral-8x7b",
    "accelerator": {"type": "h100-sxm", "count": 64},
    "data": {"mockData": True},
}
LATENT = {
    "recipe": "deepseek-v2",
    "accelerator": {"type": "h100-sxm", "count": 128},
    "data": {"mockData": True},
}
FP32 = DENSE | {"training": {"bf16": False}}
OF_EXPERTS = ("moe-", "overlap-", "delay-", "ep-", "cpu-offloading")
"""Flags that a model with experts, or with pipeline stages, answers otherwise."""
VALUES: dict[str, Any] = {
    "cuda-graph-modules": ["attn"],
    "cuda-graph-scope": ["attn"],
    "eval-global-batch-size": 128,
    "hybrid-layer-pattern": "*-" * 32,
    "linear-attention-freq": "4",
    "no-rope-freq": "4",
}
"""Values of flags whose text has a form."""
NOT_TRIED = {
    "heterogeneous-layers-config-encoded-json": "the document itself",
    "heterogeneous-layers-config-path": "a file of the image or a volume",
    "hybrid-override-pattern": "the older name of hybrid-layer-pattern",
    "phase-transition-iterations": "iterations of a checkpoint, which is loaded after the stages here",
    "spec": "a module of the image",
    "te-precision-config-file": "a file of the image or a volume",
}
"""Flags whose value is right or wrong only where the run is, with what it names."""


@cache
def actions() -> dict[str, argparse.Action]:
    """The parser's flags, with dashes."""
    return reads.parser()._option_string_actions


def values(flag: str) -> Iterator[object]:
    """Values other than the default."""
    action = actions()[f"--{flag}"]
    if flag in VALUES:
        yield VALUES[flag]
    elif action.nargs == 0:
        yield True
    else:
        kinds: dict[object, object] = {int: (action.default or 0) + 1 if type(action.default) is int else 2}
        kinds |= {float: 0.25 if action.default == 0.5 else 0.5}
        alone = [each for each in action.choices or () if each != action.default]
        for value in alone or [kinds.get(action.type, "text")]:
            yield [value] if megatron_flags()[flag] == "values" else value


def refused_by_megatron_alone(megatron: Megatron, base: dict[str, Any], flags: list[str]) -> list[str]:
    """Flags that the operator accepts on top of `base`, and with which Megatron does not start."""
    found = []
    for flag in flags:
        for value in values(flag):
            try:
                case = cases.build(flag, base | {"megatronArgs": {flag: value}}, packages=())
            except InvalidRecipeError:
                continue
            try:
                megatron.start(case.trainer_words, case.world_size)
            except NotAccepted as refusal:
                found.append(f"{flag} {value}: {refusal}")
    return found


@pytest.mark.parametrize(
    ("base", "prefixes"),
    [(DENSE, ("",)), (EXPERTS, OF_EXPERTS), (LATENT, ("",)), (FP32, ("",))],
    ids=["dense", "with experts", "latent attention", "FP32"],
)
def test_what_megatron_refuses_is_refused_before_a_run_exists(
    megatron: Megatron, base: dict[str, Any], prefixes: tuple[str, ...]
) -> None:
    flags = [flag for flag in sorted(megatron_flags()) if flag not in NOT_TRIED and flag.startswith(prefixes)]
    assert len(flags) > 50
    assert refused_by_megatron_alone(megatron, base, flags) == []


def test_flags_that_are_not_tried_are_flags_of_megatron() -> None:
    assert NOT_TRIED.keys() | VALUES.keys() <= megatron_flags().keys()
