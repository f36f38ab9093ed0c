"""Megatron accepts the operator's arguments and derives the sizes of the plan from them."""

import cases
import pytest
from cases import Case
from stages import Megatron, Started


@pytest.fixture(
    scope="module", params=[*cases.specs(), *cases.functions(), *cases.without_packages(), *cases.switched()]
)
def case(request: pytest.FixtureRequest) -> Case:
    return cases.case(request.param)


@pytest.fixture(scope="module")
def started(megatron: Megatron, case: Case) -> Started:
    return megatron.start(case.trainer_words, case.world_size)


def test_process_groups_match_the_plan(case: Case, started: Started) -> None:
    plan = case.plan
    assert started.degrees == {
        "tensor": plan.tensor_model_parallel_size,
        "pipeline": plan.pipeline_model_parallel_size,
        "context": plan.context_parallel_size,
        "data": plan.data_parallel_size,
        "expert": plan.expert_model_parallel_size,
        "expert_tensor": plan.expert_tensor_parallel_size,
        "expert_data": plan.expert_data_parallel_size,
    }


def test_every_layer_has_a_stage(case: Case, started: Started) -> None:
    assert sum(map(sum, started.stage_layers)) == case.resolved.model.num_layers
    assert len(started.stage_layers) == (case.plan.virtual_pipeline_model_parallel_size or 1)


def test_batches_match_the_plan(case: Case, started: Started) -> None:
    if case.resolved.training.step_batch_size_schedule is None:
        assert started.micro_batches == case.plan.gradient_accumulation
        assert started.args.global_batch_size == case.plan.global_batch_size
    assert started.args.eval_global_batch_size == case.plan.global_batch_size


def test_the_run_has_the_requested_length(case: Case, started: Started) -> None:
    training = case.resolved.training
    asked = training.train_samples or (training.train_iters or 0) * case.plan.global_batch_size
    assert started.samples[0] == asked


def test_the_learning_rate_is_scheduled_as_requested(case: Case, started: Started) -> None:
    training, scheduler = case.resolved.training, started.scheduler
    assert scheduler.max_lr == training.lr
    assert scheduler.min_lr == (training.min_lr or 0.0)
    assert scheduler.lr_decay_style == (training.lr_decay_style or "linear")
    warmup = training.lr_warmup_samples or (training.lr_warmup_iters or 0) * case.plan.global_batch_size
    assert scheduler.lr_warmup_steps == warmup


def test_the_vocabulary_is_padded_as_planned(case: Case, started: Started) -> None:
    vocab, multiple = case.resolved.model.vocab_size or 0, 128 * case.plan.tensor_model_parallel_size
    assert started.args.padded_vocab_size == -(-vocab // multiple) * multiple
