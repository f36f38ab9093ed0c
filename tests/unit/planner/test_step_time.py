"""Step time: what each part depends on, and the error against published runs."""

import dataclasses
from typing import Any

import pytest
from megatron_operator.planner import plan
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate import step_time as speed
from megatron_operator.planner.estimate.hardware import Accelerator
from megatron_operator.planner.estimate.step_time import StepTime, expected, step_time
from megatron_operator.planner.estimate.workload import Execution, Numerics, Recomputation, Workload

from bench import planner as error_table
from bench.published import Measurement, measurements

MEASUREMENTS = measurements()
FUSED = [f for f in MEASUREMENTS if f.workload.execution.fused_experts]
"""GPT-OSS in MXFP8 with Transformer Engine's operation fuser, slower than the model can explain."""
MODELLED = [measurement for measurement in MEASUREMENTS if measurement not in FUSED]
LARGEST_ERROR = 0.25
"""No other published run may be predicted worse than this; docs/planner.md has the table."""


def find(*words: str) -> Measurement:
    return next(
        measurement for measurement in MEASUREMENTS if all(word in measurement.name for word in words)
    )


DENSE = find("llama3-70b", "h100", "fp8").workload
EXPERTS = find("deepseek-v3", "h100").workload
H100 = hardware.get("h100-sxm")
assert H100 is not None, "the table has no H100"


def on_h100(w: Workload, **changes: Any) -> StepTime:
    assert isinstance(H100, Accelerator)
    return step_time(dataclasses.replace(w, **changes), H100)


def with_dims(w: Workload, **sizes: int) -> Workload:
    return dataclasses.replace(w, dims=dataclasses.replace(w.dims, **sizes))


@pytest.mark.parametrize(
    "measurement", MODELLED, ids=lambda measurement: f"{measurement.source} {measurement.name}"
)
def test_every_published_run_is_predicted(measurement: Measurement) -> None:
    assert abs(error_table.error(measurement)) < LARGEST_ERROR


def test_the_mean_error_of_held_out_runs_is_below_ten_percent() -> None:
    mean, _ = error_table.mean_and_worst(f for f in MEASUREMENTS if f.part == "held-out")
    assert mean < 0.10


def test_unexplained_runs_are_in_the_table() -> None:
    off = {
        measurement for measurement in MEASUREMENTS if abs(error_table.error(measurement)) >= LARGEST_ERROR
    }
    assert off <= set(FUSED)
    assert all(f"| added later | {measurement.name} |" in error_table.PAGE.read_text() for measurement in off)


def test_each_part_has_at_least_15_measurements() -> None:
    parts = [measurement.part for measurement in MEASUREMENTS]
    assert min(parts.count("calibration"), parts.count("held-out")) >= 15


def test_the_page_has_the_current_table() -> None:
    text = error_table.PAGE.read_text()
    assert error_table.page(text, MEASUREMENTS) == text, (
        "run `python -m bench.planner --write` and review the diff"
    )


def test_a_window_reduces_attention() -> None:
    windowed = dataclasses.replace(DENSE.shape, window=128, windowed=0.5)
    assert on_h100(DENSE, shape=windowed).attention < 0.6 * on_h100(DENSE).attention


def test_biases_of_experts_cost_memory_traffic() -> None:
    biased = dataclasses.replace(EXPERTS.shape, bias=True)
    assert on_h100(EXPERTS, shape=biased).elementwise > on_h100(EXPERTS).elementwise


def test_fused_experts_have_no_operations_on_biases() -> None:
    biased = dataclasses.replace(EXPERTS.shape, bias=True)
    fused = dataclasses.replace(EXPERTS.execution, fused_experts=True)
    assert on_h100(EXPERTS, shape=biased, execution=fused).elementwise == on_h100(EXPERTS).elementwise


def test_launches_of_experts_are_hidden_only_partly() -> None:
    assert on_h100(EXPERTS, micro_batch=8).host > 0
    assert on_h100(EXPERTS, micro_batch=8, execution=Execution(graphs="full")).host == 0


def test_the_exchange_of_the_first_micro_batch_is_hidden_by_no_other() -> None:
    dims = dataclasses.replace(EXPERTS.dims, pp=1, vp=1, ep=8)
    overlapped = dataclasses.replace(EXPERTS.execution, expert_overlap=True)
    shape = {"dims": dims, "stage_layers": (EXPERTS.shape.layers,)}
    plain = on_h100(EXPERTS, **shape, micro_batches=1).expert
    assert on_h100(EXPERTS, **shape, execution=overlapped, micro_batches=1).expert == pytest.approx(plain)
    five = on_h100(EXPERTS, **shape, execution=overlapped, micro_batches=5).expert / 5
    many = on_h100(EXPERTS, **shape, execution=overlapped, micro_batches=1000).expert / 1000
    assert five == pytest.approx((1 - 0.9 * 0.8) * plain)
    assert many == pytest.approx(0.1 * plain, rel=0.01)


FP32 = Numerics(weight=4, gradient=4, optimizer=8, gathered_weight=4)


def test_fp32_is_multiplied_in_tf32_at_half_the_peak_of_bf16_and_moves_twice_the_bytes() -> None:
    bf16 = dataclasses.replace(DENSE, numerics=Numerics())
    plain, wide = on_h100(bf16), on_h100(bf16, numerics=FP32)
    assert 1.8 < wide.matmul / plain.matmul < 3
    assert wide.elementwise == pytest.approx(2 * plain.elementwise)
    assert wide.tensor == pytest.approx(2 * plain.tensor)
    assert wide.pipeline == pytest.approx(2 * plain.pipeline)
    whole = on_h100(EXPERTS, numerics=FP32, execution=Execution()).expert
    assert whole == pytest.approx(2 * on_h100(EXPERTS, execution=Execution()).expert)


def test_the_mfu_of_fp32_is_a_share_of_the_tf32_peak() -> None:
    assert isinstance(H100, Accelerator)
    found = expected(dataclasses.replace(DENSE, numerics=FP32), H100)
    assert found.mfu == pytest.approx(found.tflops_per_gpu * 1e12 / (989.4e12 / 2))


def test_unfused_attention_of_fp32_is_multiplied_without_tensor_cores() -> None:
    run = Execution(unfused_attention=True)
    assert (
        on_h100(DENSE, numerics=FP32, execution=run).attention > 3 * on_h100(DENSE, execution=run).attention
    )
    ada, a100 = hardware.get("l40s"), hardware.get("a100-80")
    assert ada is not None
    assert a100 is not None
    assert (ada.fp32 / ada.bf16, a100.tf32) == (1 / 4, 156e12)


def test_parts_add_up_to_the_step() -> None:
    step = on_h100(EXPERTS)
    assert sum(getattr(step, f.name) for f in dataclasses.fields(step)) == pytest.approx(step.total)


def test_more_micro_batches_make_the_bubble_smaller() -> None:
    few, many = on_h100(DENSE, micro_batches=16), on_h100(DENSE, micro_batches=128)
    assert few.bubble == pytest.approx(many.bubble)
    assert few.bubble / few.total > 4 * many.bubble / many.total


def test_interleaving_divides_the_bubble() -> None:
    plain, interleaved = on_h100(with_dims(DENSE, vp=1)), on_h100(with_dims(DENSE, vp=5))
    assert interleaved.bubble == pytest.approx(plain.bubble / 5, rel=0.1)


def test_full_recomputation_repeats_a_third_of_the_matrix_products() -> None:
    plain, full = on_h100(DENSE), on_h100(DENSE, recompute=Recomputation("full"))
    assert 1.2 < full.matmul / plain.matmul < 4 / 3 + 0.01
    assert full.attention > plain.attention


def test_tensor_parallelism_across_domains_is_slow() -> None:
    inside, across = on_h100(with_dims(DENSE, tp=8, dp=1)), on_h100(with_dims(DENSE, tp=16, dp=1))
    assert across.tensor > 5 * inside.tensor


def test_overlap_hides_communication() -> None:
    shown = on_h100(EXPERTS, execution=Execution())
    hidden = on_h100(EXPERTS, execution=Execution(tensor_overlap=True, expert_overlap=True))
    assert hidden.expert < 0.5 * shown.expert
    assert hidden.tensor < 0.5 * shown.tensor


def test_the_flex_dispatcher_sends_less_between_domains() -> None:
    plain = on_h100(EXPERTS, execution=Execution())
    flex = on_h100(EXPERTS, execution=Execution(deduplicated_dispatch=True))
    assert flex.expert < plain.expert


def test_experts_within_a_rack_use_its_links() -> None:
    rack = hardware.get("gb200-nvl72")
    assert rack is not None
    assert step_time(EXPERTS, rack).expert < 0.2 * on_h100(EXPERTS).expert


def test_no_layer_is_faster_than_its_launches() -> None:
    tiny = dataclasses.replace(EXPERTS, seq_length=256, execution=Execution())
    captured = dataclasses.replace(tiny, execution=Execution(graphs="full"))
    assert on_h100(tiny).host > 0.5 * on_h100(tiny).total
    assert on_h100(captured).host == 0
    assert on_h100(DENSE, micro_batch=8).host == 0


def test_the_same_flops_in_experts_an_eighth_as_wide_take_longer() -> None:
    eighth = dataclasses.replace(EXPERTS.shape, experts=2048, topk=64, expert_ffn=256)
    assert on_h100(EXPERTS, shape=eighth).matmul > 1.1 * on_h100(EXPERTS).matmul


def test_gradients_that_are_not_overlapped_cost_more() -> None:
    apart = Execution(gradient_overlap=False, parameter_overlap=False)
    assert on_h100(DENSE, execution=apart).data > 5 * on_h100(DENSE, execution=Execution()).data


def test_longer_sequences_need_more_attention_per_token() -> None:
    short, long = on_h100(DENSE), on_h100(DENSE, seq_length=2 * DENSE.seq_length)
    assert long.attention == pytest.approx(4 * short.attention)


def test_fp8_is_faster_than_bf16_and_measured_against_its_own_peak(resolve: Any) -> None:
    half = resolve("llama3-8b", 8)
    fp8 = resolve("llama3-8b", 8, training={"fp8Format": "hybrid"})
    slow, fast = (speed.estimate(each, plan(each)) for each in (half, fp8))
    assert slow is not None
    assert fast is not None
    assert fast.tokens_per_second_per_gpu > 1.2 * slow.tokens_per_second_per_gpu
    assert fast.mfu == pytest.approx(fast.tflops_per_gpu / 1978.9, rel=1e-3)


def test_expected_values_are_consistent(resolve: Any) -> None:
    resolved = resolve("llama3-70b", 64)
    planned = plan(resolved)
    of = speed.estimate(resolved, planned)
    assert of is not None
    tokens = planned.global_batch_size * (resolved.training.seq_length or 0)
    assert of.tokens_per_second_per_gpu == pytest.approx(tokens / of.step_seconds / 64)
    assert of.tflops_per_gpu == pytest.approx(of.tokens_per_second_per_gpu * planned.flops_per_token / 1e12)
    assert of.mfu == pytest.approx(of.tflops_per_gpu / 989.4, rel=1e-3)


def test_a_cpu_has_no_expected_speed(resolve: Any) -> None:
    resolved = resolve("tiny-gpt", 2, "cpu")
    assert speed.estimate(resolved, plan(resolved)) is None


def test_the_expected_bubble_is_a_share_of_the_step() -> None:
    assert isinstance(H100, Accelerator)
    step = step_time(DENSE, H100)
    assert expected(DENSE, H100).bubble == pytest.approx(step.bubble / step.total)
