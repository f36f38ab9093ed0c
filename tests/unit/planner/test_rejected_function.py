"""A function whose layout the planner rejects gives neither its layout nor what was published with it."""

from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import load
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner import admit, megatron_arguments

ASKED = {
    "recipe": "llama3_8b_pretrain_2gpu_h100_nvfp4_config",
    "accelerator": {"type": "h100-sxm", "count": 2},
    "data": {"mockData": True},
}


def test_nvfp4_of_a_function_is_not_passed_to_hopper() -> None:
    planned = admit("run", MegatronRecipeSpec.model_validate(ASKED), default_platform(), load())
    arguments = megatron_arguments(planned.resolved, planned.plan, "run")
    assert "--bf16" in arguments
    assert not [word for word in arguments if word.startswith("--fp4")]


def test_notes_do_not_contradict_each_other() -> None:
    notes = admit("run", MegatronRecipeSpec.model_validate(ASKED), default_platform(), load()).plan.notes
    assert [note for note in notes if "the layout of llama3_8b_pretrain" in note and "is not used" in note]
    assert not [note for note in notes if "is used (" in note or "NVFP4 is estimated" in note]
