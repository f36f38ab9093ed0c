"""Flags that Megatron refuses without another setting are refused with what they need, and taken with it."""

from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.planner import plan

from tests.unit.planner.planning_errors import errors

AWARE = {"usePrecisionAwareOptimizer": True}


@pytest.mark.parametrize(
    ("args", "error", "with_need"),
    [
        (
            {"exp-avg-dtype": "bf16"},
            "spec.megatronArgs.exp-avg-dtype: requires the precision-aware optimizer",
            {"training": AWARE},
        ),
        (
            {"cuda-graph-impl": "full_iteration"},
            "spec.megatronArgs.cuda-graph-impl: full_iteration captures no check of the loss",
            {"megatronArgs": {"no-check-for-nan-in-loss-and-grad": True}},
        ),
        (
            {"start-weight-decay": 0.01, "end-weight-decay": 0.1},
            "spec.megatronArgs.start-weight-decay: 0.01 is set without weight-decay-incr-style",
            {"megatronArgs": {"weight-decay-incr-style": "linear"}},
        ),
        (
            {"weight-decay-incr-style": "linear"},
            "spec.megatronArgs.weight-decay-incr-style: linear requires start-weight-decay and end-",
            {"megatronArgs": {"start-weight-decay": 0.01, "end-weight-decay": 0.1}},
        ),
        (
            {"hierarchical-context-parallel-sizes": [2, 2]},
            "[2, 2] are 4 ranks, and parallelism.contextParallelSize is 2",
            {"parallelism": {"contextParallelSize": 4}},
        ),
        (
            {"lr-warmup-init": 1},
            "spec.megatronArgs.lr-warmup-init: 1 is above training.lr 0.0003; set at most 0.0003",
            {"training": {"lr": 2}},
        ),
        (
            {"log-memory-interval": 25},
            "25 is not a multiple of training.logInterval 10",
            {"training": {"logInterval": 5}},
        ),
        (
            {"save-retain-interval": 750},
            "750 is not a multiple of checkpoint.saveInterval 500",
            {"checkpoint": {"saveInterval": 250}},
        ),
        (
            {"fine-grained-activation-offloading": True, "offload-modules": ["core_attn"]},
            'set offload-modules, and env {NVTE_CPU_OFFLOAD_V1: "1"}',
            {"env": {"NVTE_CPU_OFFLOAD_V1": "1"}},
        ),
        (
            {"lr-wsd-decay-iters": 100},
            "spec.megatronArgs.lr-wsd-decay-iters: 100 has no effect without lrDecayStyle WSD",
            {"training": {"lrDecayStyle": "WSD"}},
        ),
    ],
)
def test_a_flag_is_taken_only_with_what_it_needs(
    resolve: Any, args: dict[str, Any], error: str, with_need: dict[str, Any]
) -> None:
    assert any(error in each for each in errors(resolve("llama3-8b", 8, megatronArgs=args)))
    added = with_need | {"megatronArgs": args | with_need.get("megatronArgs", {})}
    assert errors(resolve("llama3-8b", 8, **added)) == []


@pytest.mark.parametrize(
    "asked",
    [
        {"checkpoint": {"keepBest": True}},
        {
            "export": {
                "huggingFace": {"path": "/checkpoints/out", "base": "/checkpoints/model"},
                "when": ["best"],
            }
        },
    ],
)
def test_megatrons_own_deletion_of_checkpoints_is_refused_where_the_best_is_kept(
    resolve: Any, asked: dict[str, Any]
) -> None:
    flag = {"megatronArgs": {"save-retain-interval": 1000}}
    settings = {"training": {"evalInterval": 500}, "data": {"mockData": True}, "image": "trainer-bridge"}
    assert errors(resolve("llama3-8b", 8, **settings, **flag)) == []
    assert errors(resolve("llama3-8b", 8, **settings, **asked)) == []
    assert errors(resolve("llama3-8b", 8, **settings, **asked, **flag)) == [
        "spec.megatronArgs.save-retain-interval: deletes the best checkpoint, which checkpoint.keepBest or "
        "export.when keeps; leave it out, and set checkpoint.keep"
    ]


@pytest.mark.parametrize(
    ("args", "sizes"),
    [
        ({"defer-embedding-wgrad-compute": True}, {"pipeline_model_parallel_size": 7}),
        ({"hierarchical-context-parallel-sizes": [2, 2]}, {"context_parallel_size": 4}),
    ],
)
def test_a_layout_is_planned_with_which_megatron_accepts_the_flag(
    resolve: Any, args: dict[str, Any], sizes: dict[str, int]
) -> None:
    made = plan(resolve("llama3-70b", 56, megatronArgs=args, image="own"))
    assert {name: getattr(made, name) for name in sizes} == sizes


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (
            {"cpu-offloading-num-layers": 2},
            "excludes pipeline stages and recomputation, and no layout without both fits",
        ),
        (
            {"hybrid-context-parallel": True, "calculate-per-token-loss": True},
            "excludes pipeline stages, and no layout without them fits",
        ),
        (
            {"distribute-saved-activations": True},
            "requires tensor parallelism and full recomputation, without sequence parallelism",
        ),
        (
            {"hierarchical-context-parallel-sizes": [3]},
            "are 3 ranks, and no layout that fits has CP 3",
        ),
    ],
)
def test_a_flag_is_refused_that_no_layout_suits(resolve: Any, args: dict[str, Any], error: str) -> None:
    (found,) = errors(resolve("llama3-70b", 56, megatronArgs=args))
    assert found.startswith(f"spec.megatronArgs.{next(iter(args))}: {error}; ")


def test_a_flag_is_refused_once_that_a_size_of_the_recipe_rules_out(resolve: Any) -> None:
    one = {"pipelineModelParallelSize": 1}
    args = {"defer-embedding-wgrad-compute": True}
    assert errors(resolve("llama3-8b", 8, parallelism=one, megatronArgs=args, image="own")) == [
        "spec.megatronArgs.defer-embedding-wgrad-compute: requires pipeline stages, and"
        " parallelism.pipelineModelParallelSize is 1; set it above 1, or leave the flag out"
    ]


@pytest.mark.parametrize("training", [{"bf16": False, "fp16": True}, {"bf16": False}])
def test_sums_in_bf16_are_refused_without_bf16(resolve: Any, training: dict[str, bool]) -> None:
    args = {"grad-reduce-in-bf16": True}
    assert errors(resolve("llama3.2-1b", 8, megatronArgs=args)) == []
    assert errors(resolve("llama3.2-1b", 8, megatronArgs=args, training=training)) == [
        "spec.megatronArgs.grad-reduce-in-bf16: has no effect without training.bf16; leave it out"
    ]


@pytest.mark.parametrize("flag", ["attention-output-gate", "rotary-interleaved"])
def test_flags_of_attention_that_latent_attention_lacks_are_refused_with_it(resolve: Any, flag: str) -> None:
    (found,) = errors(resolve("deepseek-v2", 128, megatronArgs={flag: True}))
    assert found == f"spec.megatronArgs.{flag}: excludes multi-latent attention; leave it out"
    assert errors(resolve("llama3-8b", 8, megatronArgs={flag: True})) == []


def test_residuals_in_fp32_are_refused_in_a_run_that_is_in_fp32_itself(resolve: Any) -> None:
    flag = {"fp32-residual-connection": True}
    (found,) = errors(resolve("llama3-8b", 8, training={"bf16": False}, megatronArgs=flag))
    field = "spec.megatronArgs.fp32-residual-connection"
    assert found.startswith(f"{field}: requires training.bf16 or training.fp16; leave it out")
    assert errors(resolve("llama3-8b", 8, megatronArgs=flag)) == []


@pytest.mark.parametrize("flag", ["enable-cuda-graph", "external-cuda-graph", "moe-layer-recompute"])
def test_older_names_of_flags_exclude_full_recomputation_too(resolve: Any, flag: str) -> None:
    recipe = ("mixtral-8x7b", 64) if flag.startswith("moe") else ("llama3-8b", 8)
    full = {"recomputeGranularity": "full", "recomputeMethod": "uniform", "recomputeNumLayers": 1}
    found = errors(resolve(*recipe, parallelism=full, megatronArgs={flag: True}))
    assert found == [
        f"spec.megatronArgs.{flag}: excludes full recomputation, without which no layout fits; leave it out,"
        " or use more accelerators"
    ]
    assert errors(resolve(*recipe, megatronArgs={flag: True})) == []


def test_saved_parameters_exclude_the_overlap_of_the_plan(resolve: Any) -> None:
    args = {"save-params-interval": 10}
    (found,) = errors(resolve("llama3-8b", 8, megatronArgs=args))
    assert found.startswith("spec.megatronArgs.save-params-interval: excludes the overlap")
    assert errors(resolve("llama3-8b", 2, "cpu", megatronArgs=args)) == []
    replicated = {"useDistributedOptimizer": False}
    assert errors(resolve("llama3.2-1b", 8, parallelism=replicated, megatronArgs=args)) == []


def test_activations_of_transformer_engine_have_no_fused_bias_in_a_model_without_biases(resolve: Any) -> None:
    args, model = {"use-te-activation-func": True}, {"swiglu": False, "disableBiasLinear": True}
    assert errors(resolve("llama3-8b", 8, model=model, megatronArgs=args)) == []
    with_biases = model | {"disableBiasLinear": False}
    (found,) = errors(resolve("llama3-8b", 8, model=with_biases, megatronArgs=args))
    assert "excludes Megatron's fusion of bias and activation" in found


@pytest.mark.parametrize(
    ("source", "is_refused"),
    [
        ({"envValueFrom": {"NVTE_CPU_OFFLOAD_V1": {"configMapKeyRef": {"name": "te", "key": "v1"}}}}, False),
        ({"envFrom": [{"configMapRef": {"name": "te"}}]}, False),
        ({"image": "of-the-recipe"}, False),
        ({"image": "of-the-recipe", "env": {"NVTE_CPU_OFFLOAD_V1": "0"}}, True),
    ],
)
def test_a_variable_may_come_from_where_the_recipe_does_not_show_it(
    resolve: Any, source: dict[str, Any], is_refused: bool
) -> None:
    args = {"fine-grained-activation-offloading": True, "offload-modules": ["core_attn"]}
    assert bool(errors(resolve("llama3-8b", 8, megatronArgs=args, **source))) == is_refused


def test_experts_of_a_fixed_capacity_need_the_fused_operations_with_hybridep(resolve: Any) -> None:
    args = {"moe-expert-rank-capacity-factor": 1.5, "moe-flex-dispatcher-backend": "hybridep"}
    flex = {"image": "of-the-recipe", "model": {"moeTokenDispatcherType": "flex"}}
    (found,) = errors(resolve("mixtral-8x7b", 64, megatronArgs=args, **flex))
    assert "hybridep and use-transformer-engine-op-fuser: true" in found
    fused = args | {"use-transformer-engine-op-fuser": True}
    assert errors(resolve("mixtral-8x7b", 64, megatronArgs=fused, **flex)) == []


IN_MXFP8 = {"fp8Format": "e4m3", "fp8Recipe": "mxfp8"}


@pytest.mark.parametrize(
    ("args", "refused", "error", "taken"),
    [
        (
            {"fp8-output-proj": True},
            ({}, {"fp8Format": "hybrid"}, {"fp8Format": "hybrid", "fp8Recipe": "tensorwise"}),
            "spec.megatronArgs.fp8-output-proj: requires matrix products in MXFP8; set training.fp8Format:"
            " e4m3 and fp8Recipe: mxfp8, or leave it out",
            (IN_MXFP8,),
        ),
        (
            {"first-last-layers-bf16": True},
            ({"fp8Format": "hybrid"}, {"fp8Format": "hybrid", "fp8Recipe": "delayed"}),
            "spec.megatronArgs.first-last-layers-bf16: excludes delayed scaling, which is Megatron's default;"
            " set training.fp8Recipe: tensorwise, or leave it out",
            ({"fp8Format": "hybrid", "fp8Recipe": "tensorwise"}, IN_MXFP8, {}),
        ),
    ],
)
def test_layers_in_another_precision_need_scales_that_megatron_takes_with_them(
    resolve: Any, args: dict[str, bool], refused: tuple[Any, ...], error: str, taken: tuple[Any, ...]
) -> None:
    def found(training: dict[str, Any]) -> list[str]:
        return errors(resolve("llama3-8b", 8, "gb200", training=training, megatronArgs=args))

    assert [found(training) for training in refused] == [[error]] * len(refused)
    assert [found(training) for training in taken] == [[]] * len(taken)


@pytest.mark.parametrize(
    "stages",
    [{"numVirtualStagesPerPipelineRank": 2}, {"pipelineModelParallelLayout": "Et*8|t*8|t*8|t*8L"}],
)
def test_virtual_stages_without_overlapped_messages_need_more_than_two_stages(
    resolve: Any, stages: dict[str, Any]
) -> None:
    args, two = {"no-overlap-p2p-communication": True}, {"pipelineModelParallelSize": 2}
    assert errors(resolve("llama3-8b", 16, parallelism=two | stages)) == []
    (found,) = errors(resolve("llama3-8b", 16, parallelism=two | stages, megatronArgs=args))
    assert found == (
        "spec.megatronArgs.no-overlap-p2p-communication: requires 3 pipeline stages or more where these have"
        " virtual ones, and no layout that fits has them; set parallelism.pipelineModelParallelSize above 2,"
        " or leave the virtual stages or the flag out"
    )
    assert errors(resolve("llama3-8b", 16, parallelism=two, megatronArgs=args)) == []
    four = {"pipelineModelParallelSize": 4, "numVirtualStagesPerPipelineRank": 2}
    assert errors(resolve("llama3-8b", 16, parallelism=four, megatronArgs=args)) == []


def test_instances_of_the_optimizer_divide_the_ranks_that_share_its_states(resolve: Any) -> None:
    name = "spec.megatronArgs.num-distributed-optimizer-instances"

    def run(recipe: str, instances: int | str, **changes: Any) -> Any:
        return resolve(recipe, 64, megatronArgs={name.rpartition(".")[2]: instances}, **changes)

    one, two = (plan(run("llama3-8b", instances)).memory_per_gpu for instances in (1, "2"))
    assert one is not None
    assert two is not None
    assert two.optimizer == pytest.approx(2 * one.optimizer)
    for instances in (0, 3):
        assert errors(run("llama3-8b", instances)) == [
            f"{name}: {instances} instances do not divide DP x CP of any layout that fits; set a divisor, or"
            " leave the flag out"
        ]
    experts = {"parallelism": {"expertModelParallelSize": 8, "tensorModelParallelSize": 1}}
    assert errors(run("qwen3-30b-a3b", 8, **experts)) == []
    assert errors(run("qwen3-30b-a3b", 16, **experts)) == [
        f"{name}: 16 instances do not divide DP x CP and the DP of experts of any layout that fits; set a"
        " common divisor, or leave the flag out"
    ]
    (found,) = errors(run("llama3.2-1b", 2, parallelism={"useDistributedOptimizer": False}))
    assert found.startswith(f"{name}: requires the distributed optimizer, which is off; set parallelism.")


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (
            {"eval-micro-batch-size": 3},
            "eval-micro-batch-size: 3 x DP of any layout that fits does not divide the global batch size; set"
            " a divisor, eval-global-batch-size to a multiple, or leave the flag out",
        ),
        (
            {"eval-micro-batch-size": 3, "eval-global-batch-size": 128},
            "eval-micro-batch-size: 3 x DP of any layout that fits does not divide eval-global-batch-size"
            " 128; set a divisor, eval-global-batch-size to a multiple, or leave the flag out",
        ),
        (
            {"eval-global-batch-size": 7},
            "eval-global-batch-size: 7 samples are no multiple of the micro batch x DP of any layout that"
            " fits; set a multiple, or leave it out",
        ),
        ({"eval-micro-batch-size": 3, "eval-global-batch-size": 96}, None),
        ({"eval-micro-batch-size": 2}, None),
    ],
)
def test_ranks_and_micro_batches_split_the_samples_of_an_evaluation(
    resolve: Any, args: dict[str, int], error: str | None
) -> None:
    found = errors(resolve("llama3-8b", 8, megatronArgs=args))
    assert found == ([f"spec.megatronArgs.{error}"] if error else [])


LOCAL_CHECKPOINTS = {"non-persistent-ckpt-type": "local", "enable-msc": True, "replication": True}


def test_an_own_image_is_not_refused_for_packages_of_the_projects(resolve: Any) -> None:
    assert len(errors(resolve("llama3-8b", 8, megatronArgs=LOCAL_CHECKPOINTS))) == 3
    assert errors(resolve("llama3-8b", 8, image="own", megatronArgs=LOCAL_CHECKPOINTS)) == []


def test_user_buffers_of_nccl_need_an_image_in_which_megatron_can_compile(resolve: Any) -> None:
    args = {"use-nccl-ub": True}
    (found,) = errors(resolve("llama3-8b", 8, megatronArgs=args))
    assert found.startswith("spec.megatronArgs.use-nccl-ub: makes Megatron compile an allocator for NCCL")
    assert errors(resolve("llama3-8b", 8, image="own", megatronArgs=args)) == []


def test_the_image_of_a_profile_is_not_refused_for_packages_of_the_projects() -> None:
    body = {
        "recipe": "llama3-8b",
        "accelerator": {"type": "h100-sxm", "count": 8},
        "data": {"mockData": True},
        "megatronArgs": LOCAL_CHECKPOINTS,
    }
    platform = {"accelerators": {"h100-sxm": {"image": "of-the-profile"}}, "image": "trainer"}
    resolved = catalog.resolve(
        MegatronRecipeSpec.model_validate(body), PlatformConfig.model_validate(platform), catalog.load()
    )
    assert errors(resolved) == []


def test_overlapped_weight_gradients_need_the_overlap_of_experts(resolve: Any) -> None:
    found = errors(resolve("mixtral-8x7b", 64, megatronArgs={"delay-wgrad-compute": True}))
    assert [each.split(":")[0] for each in found] == ["spec.megatronArgs.delay-wgrad-compute"]


def test_the_length_of_the_last_decay_has_the_unit_of_the_run(resolve: Any) -> None:
    in_samples = {"lrDecayStyle": "WSD", "trainSamples": 10_000_000}
    found = errors(resolve("llama3-8b", 8, training=in_samples, megatronArgs={"lr-wsd-decay-iters": 100}))
    assert found == [
        "spec.training.lrDecayStyle: WSD decays at the end of the run, and the length of that decay is not"
        " set; set megatronArgs.lr-wsd-decay-samples, or another style",
        "spec.megatronArgs.lr-wsd-decay-iters: 100 has no effect: the run's length is in samples; set"
        " lr-wsd-decay-samples, or leave it out",
    ]
    assert (
        errors(resolve("llama3-8b", 8, training=in_samples, megatronArgs={"lr-wsd-decay-samples": 9})) == []
    )


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ({"moe-shared-expert-overlap": True}, "true has no effect: the model has no experts"),
        ({"warmup": 2}, "was removed from Megatron; set spec.training.lrWarmupFraction"),
        ({"non-persistent-ckpt-type": "local"}, "local requires the package nvidia-resiliency-ext"),
        ({"yaml-cfg": "/data/x.yaml"}, "replaces all of the settings that the operator writes"),
    ],
)
def test_flags_that_no_other_setting_helps_are_refused(
    resolve: Any, args: dict[str, Any], error: str
) -> None:
    assert any(error in each for each in errors(resolve("llama3-8b", 8, megatronArgs=args)))


def test_a_flag_that_is_off_needs_nothing(resolve: Any) -> None:
    off = {"delay-wgrad-compute": False, "moe-shared-expert-overlap": False, "exp-avg-dtype": "fp32"}
    assert errors(resolve("llama3-8b", 8, megatronArgs=off)) == []


@pytest.mark.parametrize("style", ["linear", "cosine"])
def test_a_constant_weight_decay_is_refused_beside_one_that_grows(resolve: Any, style: str) -> None:
    ends = {"start-weight-decay": 0.01, "end-weight-decay": 0.1}
    args, constant = ends | {"weight-decay-incr-style": style}, {"weightDecay": 0.2}
    (found,) = errors(resolve("llama3-8b", 8, megatronArgs=args, training=constant))
    field = "spec.training.weightDecay"
    assert found.startswith(f"{field}: 0.2 has no effect with megatronArgs.weight-decay-incr-style {style}; ")
    assert errors(resolve("llama3-8b", 8, megatronArgs=args)) == []
    constantly = {"weight-decay-incr-style": "constant"}
    assert errors(resolve("llama3-8b", 8, megatronArgs=constantly, training=constant)) == []


GRAPHED = {
    "overlap-moe-expert-parallel-comm": True,
    "delay-wgrad-compute": True,
    "cuda-graph-impl": "transformer_engine",
    "te-rng-tracker": True,
}


@pytest.mark.parametrize(
    ("of", "modules", "is_refused"),
    [
        (("mixtral-8x7b", 64), ["attn"], True),
        (("mixtral-8x7b", 64), ["moe_router"], False),
        (("deepseek-v3", 1024), ["moe_router"], True),
    ],
    ids=["attention", "router", "router with shared experts"],
)
def test_weight_gradients_in_graphs_need_apex(
    resolve: Any, of: tuple[str, int], modules: list[str], is_refused: bool
) -> None:
    args = {"megatronArgs": GRAPHED | {"cuda-graph-modules": modules}}
    refusal = (
        "spec.megatronArgs.delay-wgrad-compute: requires Apex with CUDA graphs of these modules, and the"
        " trainer image lacks it; leave it out, or attn and with shared experts moe_router out of"
        " cuda-graph-modules"
    )
    assert (refusal in errors(resolve(*of, **args))) is is_refused
    assert refusal not in errors(resolve(*of, **args, image="own"))
    assert refusal not in errors(resolve(*of, **args, parallelism={"overlapGradReduce": False}))


def test_a_flag_that_needs_apex_is_refused_once_with_the_projects_image(resolve: Any) -> None:
    args = {"defer-embedding-wgrad-compute": True}
    for sizes in ({}, {"pipelineModelParallelSize": 1}):
        assert errors(resolve("llama3-8b", 8, megatronArgs=args, parallelism=sizes)) == [
            "spec.megatronArgs.defer-embedding-wgrad-compute: requires Apex, which the trainer image lacks;"
            " leave it out"
        ]
    assert errors(resolve("llama3-70b", 64, megatronArgs=args, image="own")) == []


DETERMINISTIC = {"deterministic-mode": True}


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"parallelism": {"tpCommOverlap": True}}, "parallelism.tpCommOverlap"),
        ({"megatronArgs": {"cross-entropy-loss-fusion": True}}, "megatronArgs.cross-entropy-loss-fusion"),
    ],
)
def test_deterministic_mode_excludes_an_overlap_and_a_fusion(
    resolve: Any, settings: dict[str, Any], field: str
) -> None:
    both = settings | {"megatronArgs": DETERMINISTIC | settings.get("megatronArgs", {})}
    assert errors(resolve("llama3-70b", 64, **both)) == [
        f"spec.{field}: true, which Megatron refuses with megatronArgs.deterministic-mode; leave one of the"
        " two out"
    ]
    assert errors(resolve("llama3-70b", 64, **settings)) == []
    assert errors(resolve("llama3-70b", 64, megatronArgs=DETERMINISTIC)) == []
