"""Which of Megatron's arguments decide what samples a run reads."""

from megatron_operator.planner.dataset_args import dataset_arguments


def test_flags_of_the_data_are_taken_with_all_their_values_and_others_are_not() -> None:
    data = ["--seq-length", "64", "--data-path", "0.3", "/data/a", "0.7", "/data/b", "--tokenizer-type", "X"]
    layout = ["--tensor-model-parallel-size", "2", "--recompute-modules", "core_attn", "moe"]
    assert dataset_arguments([*layout, *data, "--bf16", "--seed=-1"]) == [*data, "--seed=-1"]
