"""What Megatron's pretrain() requires of its caller: GPT batches, the loss of a micro-batch, the datasets.

The megatron-core wheel contains the training loop but not pretrain_gpt.py, which this module replaces.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from megatron.core import mpu
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
from megatron.core.num_microbatches_calculator import get_num_microbatches
from megatron.core.rerun_state_machine import get_rerun_state_machine
from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
from megatron.core.transformer.multi_token_prediction import get_mtp_ranks, mtp_on_this_rank
from megatron.core.utils import (
    StragglerDetector,
    get_attr_wrapped_model,
    get_batch_on_this_cp_rank,
    get_batch_on_this_tp_rank,
)
from megatron.training import get_args, get_timers
from megatron.training.argument_utils import gpt_config_from_args, hybrid_config_from_args
from megatron.training.arguments import core_transformer_config_from_args
from megatron.training.utils import get_blend_and_blend_per_split, is_first_or_last_pipeline_stage

from megatron_trainer import left_out_settings
from megatron_trainer.worker import prepared_index
from megatron_trainer.worker.dataset_splits import leave_out_unread

# Every tensor of a batch is [micro batch, sequence], except attention_mask: [micro batch, 1, sequence,
# sequence].
BATCH_KEYS = ("tokens", "labels", "loss_mask", "position_ids", "attention_mask")
_PACKED_KEYS = ("cu_seqlens", "cu_seqlens_padded", "max_seqlen", "local_cp_size", "hybrid_cp_group")
# A loss is a spike above this multiple of the largest seen (Megatron's --check-for-spiky-loss).
SPIKY_LOSS_FACTOR = 10
STRAGGLER_TIMER = StragglerDetector()
"""The detector of --log-straggler: Megatron has one in a process. Without the flag it does nothing."""


def model_config(args: Any) -> Any:
    """Return Megatron's model configuration for its args."""
    if args.hybrid_layer_pattern:
        return hybrid_config_from_args(args)
    config = gpt_config_from_args(args)
    left_out_settings.complete(config, args)
    return config


def _has_mtp_layers(args: Any, vp_stage: int | None) -> bool:
    config = core_transformer_config_from_args(args)
    return bool(
        mtp_on_this_rank(
            layout=config.pipeline_model_parallel_layout,
            mtp_num_layers=config.mtp_num_layers,
            ignore_virtual=False,
            vp_stage=vp_stage,
        )
    )


def next_batch(
    data_iterator: Iterator[dict[str, Any]], vp_stage: int | None
) -> dict[str, torch.Tensor | None]:
    """Return this rank's micro-batch, read on the first tensor-parallel rank and broadcast to the others.

    All are [micro batch, sequence of this context-parallel rank], except `attention_mask`, None or [micro
    batch, 1, sequence of this rank, whole sequence]. Keys that a stage does not need are None: all of them on
    middle pipeline stages.
    """
    args = get_args()
    has_mtp = _has_mtp_layers(args, vp_stage)
    if not (is_first_or_last_pipeline_stage(vp_stage) or has_mtp):
        return dict.fromkeys(BATCH_KEYS)
    tp_rank = mpu.get_tensor_model_parallel_rank()
    batch: dict[str, Any] = {}
    if tp_rank == 0:
        sample = next(data_iterator)
        for key in BATCH_KEYS:
            value = sample.get(key)
            batch[key] = value.cuda(non_blocking=True) if value is not None else None
        batch.update(dict.fromkeys(_PACKED_KEYS))
    batch = get_batch_on_this_tp_rank(
        batch,
        has_cu_seqlens=False,
        is_hybrid_cp=False,
        create_attention_mask_in_dataloader=args.create_attention_mask_in_dataloader,
        broadcast_src_rank=mpu.get_tensor_model_parallel_src_rank(),
        broadcast_group=mpu.get_tensor_model_parallel_group(),
        cp_size=args.context_parallel_size,
        tp_rank=tp_rank,
        micro_batch_size=args.micro_batch_size,
        seq_length=args.seq_length,
        mtp_on_this_rank=has_mtp,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        is_pipeline_first_stage=mpu.is_pipeline_first_stage(),
        is_pipeline_last_stage=mpu.is_pipeline_last_stage(),
    )
    return get_batch_on_this_cp_rank(batch, is_hybrid_cp=False, cp_group=mpu.get_context_parallel_group())  # type: ignore[no-any-return]


def drop_batches(data_iterator: Any) -> None:
    """Read the micro-batches of one iteration and discard them."""
    iterators = data_iterator if isinstance(data_iterator, list) else [data_iterator]
    for stage, iterator in enumerate(iterators):
        for _ in range(get_num_microbatches()):
            next_batch(iterator, stage if len(iterators) > 1 else None)


def compute_loss(
    loss_mask: torch.Tensor, output: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Return the sum of the unmasked token losses, the number of tokens, and both as Megatron reduces them.

    `loss_mask` and `output` are [micro batch, sequence]. Megatron divides the sums over all micro-batches and
    data-parallel ranks by the tokens over all of them.
    """
    args = get_args()
    mask = loss_mask.view(-1).float()
    loss = torch.sum(output.view(-1).float() * mask)
    tokens = mask.sum().clone().detach().to(torch.int)
    state = get_rerun_state_machine()
    if args.check_for_nan_in_loss_and_grad:
        for rejection, name in ((torch.isnan, "NaN"), (torch.isinf, "Inf")):
            state.validate_result(
                result=loss,
                rejection_func=rejection,
                message=f"found {name} in local forward loss calculation",
                tolerance=0.0,
                fatal=True,
            )
    if args.check_for_spiky_loss:
        state.validate_result(
            result=loss,
            rejection_func=partial(state.is_unexpectedly_large, threshold=SPIKY_LOSS_FACTOR, context="loss"),
            message="Spiky loss",
            tolerance=0.0,
            fatal=False,
        )
    return loss, tokens, {"lm loss": torch.cat([loss.clone().detach().view(1), tokens.view(1)])}


def forward_step(
    data_iterator: Iterator[dict[str, Any]], model: Any, return_schedule_plan: bool = False
) -> Any:
    """Run the forward pass of a micro-batch.

    Returns the model's output and the function that computes the loss.
    """
    timers = get_timers()
    timers("batch-generator", log_level=2).start()
    with STRAGGLER_TIMER(bdata=True):
        batch = next_batch(data_iterator, get_attr_wrapped_model(model, "vp_stage"))
    timers("batch-generator").stop()
    inputs = (batch["tokens"], batch["position_ids"], batch["attention_mask"])
    forward = model.build_schedule_plan if return_schedule_plan else model
    with STRAGGLER_TIMER:
        output = forward(*inputs, labels=batch["labels"], loss_mask=batch["loss_mask"])
    return output, partial(compute_loss, batch["loss_mask"])


def dataset_config(args: Any) -> GPTDatasetConfig:
    """Return what Megatron's data sets need to know of its args. Raises OSError for a missing file."""
    blend, blend_per_split = get_blend_and_blend_per_split(args)
    sequences_per_dataset = None
    if args.per_dataset_sequences_path is not None:
        with open(args.per_dataset_sequences_path) as file:  # noqa: PTH123
            sequences_per_dataset = json.load(file)
    return GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        blend=blend,
        blend_per_split=blend_per_split,
        split=args.split,
        multiple_validation_sets=args.multiple_validation_sets,
        full_validation=args.full_validation,
        num_dataset_builder_threads=args.num_dataset_builder_threads,
        path_to_cache=args.data_cache_path,
        mmap_bin_files=args.mmap_bin_files,
        tokenizer=build_tokenizer(args),
        reset_position_ids=args.reset_position_ids,
        reset_attention_mask=args.reset_attention_mask,
        eod_mask_loss=args.eod_mask_loss,
        create_attention_mask=args.create_attention_mask_in_dataloader,
        object_storage_cache_path=args.object_storage_cache_path,
        mid_level_dataset_surplus=args.mid_level_dataset_surplus,
        allow_ambiguous_pad_tokens=args.allow_ambiguous_pad_tokens,
        fast_cache_load=args.dataloader_fast_cache_load,
        sequences_per_dataset=sequences_per_dataset,
        defer_npy_index_mmap=args.dataloader_defer_npy_index_mmap,
        context_parallel_size=args.context_parallel_size,
        data_parallel_size=args.data_parallel_size,
        sequence_parallel_size=args.tensor_model_parallel_size * args.sequence_parallel,
    )


def dataset_builder(
    kind: type[GPTDataset], samples: list[int | None], is_built_on_rank: Callable[[], bool]
) -> BlendedMegatronDatasetBuilder:
    """Return the builder of the training, validation and test sets, at least `samples` long each.

    Validation and test sets of which the run reads 0 samples are None. Raises OSError for a missing file.
    """
    config = dataset_config(get_args())
    leave_out_unread(config, samples)
    return BlendedMegatronDatasetBuilder(kind, samples, is_built_on_rank, config)


def datasets(samples: list[int | None], vp_stage: int | None = None) -> Any:
    """Return what `dataset_builder` builds on the ranks that read data."""
    args = get_args()

    def builds_datasets() -> bool:
        return mpu.get_tensor_model_parallel_rank() == 0 and (
            is_first_or_last_pipeline_stage(vp_stage) or _has_mtp_layers(args, vp_stage)
        )

    cache = None
    if args.data_cache_path and not args.mock_data and torch.distributed.get_rank() == 0:
        # The builder has all other ranks wait until rank 0 has built what is missing.
        cache = Path(args.data_cache_path)
        prepared_index.take(cache)
    kind = MockGPTDataset if args.mock_data else GPTDataset
    with prepared_index.reporting_built(cache):
        return dataset_builder(kind, samples, builds_datasets).build()


datasets.is_distributed = True  # type: ignore[attr-defined]


def embedding_ranks(pp_ranks: list[int]) -> list[int]:
    """Return the pipeline ranks with the word embedding.

    Those are the first, the last if the output layer is tied to it, and those with multi-token prediction.
    """
    if len(pp_ranks) == 1:
        return [pp_ranks[0]]
    args = get_args()
    tied = [] if args.untie_embeddings_and_output_weights else [pp_ranks[-1]]
    mtp_ranks = get_mtp_ranks(pp_ranks, core_transformer_config_from_args(args))
    return sorted({pp_ranks[0], *tied, *mtp_ranks})
