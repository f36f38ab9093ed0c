"""Trains a small Llama by three recipe functions of megatron-bridge, on gloo ranks without a GPU.

A process of its own, because the stand-ins that it needs (`stand_ins`, `hub`) stay in it:

    python tests/bridge/training.py FOLDER

Pretrains, then fine-tunes from that checkpoint, by SFT and by LoRA, once undisturbed and once with a rank
killed after a checkpoint and all ranks started again. FOLDER gets `RUN.jsonl`, a line for each iteration of
rank 0, and the checkpoints of each run. The data are Bridge's mock data, and the tokenizer is a null one; the
first weights are random. Losses are cross-entropies in nats per token.
"""

import contextlib
import importlib
import json
import logging
import os
import pkgutil
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import stand_ins
from megatron_trainer.listening import free_port
from megatron_trainer.platform import cpu

RANKS = 2
ITERATIONS, SAVE_INTERVAL, KILLED_IN = 4, 2, 3
LENGTH, VOCABULARY = 64, 256
SHAPE = {
    "num_layers": 2,
    "hidden_size": 64,
    "ffn_hidden_size": 128,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "kv_channels": 16,
    "seq_length": LENGTH,
    "vocab_size": VOCABULARY,
    "make_vocab_size_divisible_by": 128,
    "tensor_model_parallel_size": RANKS,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "sequence_parallel": False,
}
WITHOUT_A_GPU = {
    "transformer_impl": "local",
    "use_cpu_initialization": True,
    "gradient_accumulation_fusion": False,
    "bias_activation_fusion": False,
    "masked_softmax_fusion": False,
    "bias_dropout_fusion": False,
    "apply_rope_fusion": False,
    "persist_layer_norm": False,
    "cross_entropy_loss_fusion": False,
    "cross_entropy_fusion_impl": "native",
    "tp_comm_overlap": False,
    "cuda_graph_impl": "none",
}


def _layers(config: Any, vp_stage: int | None = None) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    return get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization=config.normalization, vp_stage=vp_stage
    )


def _prepare() -> None:
    """Import Bridge, once for all runs."""
    cpu.install()
    import torch
    from megatron_trainer.worker import dataset_helpers

    kept = {name: getattr(torch.cuda, name) for name in ("device_count", "get_device_properties")}
    kept |= {name: getattr(torch.cuda, name) for name in ("get_device_capability", "is_available")}
    stand_ins.install()
    for name, function in kept.items():
        setattr(torch.cuda, name, function)
    import hub  # transformers reads at import that it is offline

    hub.answer_locally()
    dataset_helpers.skip_build()
    import megatron.bridge.recipes
    import megatron.bridge.training.finetune
    import megatron.bridge.training.gpt_step
    import megatron.bridge.training.pretrain  # noqa: F401
    from megatron.bridge import peft
    from megatron.bridge.training import train

    # Nothing is distilled; a hollow modelopt would give a function that Megatron's schedule refuses.
    train.get_tensor_shapes_adjust_fn_for_distillation = lambda *_, **__: None
    for info in pkgutil.iter_modules(peft.__path__):
        module: Any = importlib.import_module(f"{peft.__name__}.{info.name}")
        if hasattr(module, "HAVE_TE"):
            module.HAVE_TE = False  # hollow, it looks installed


def _config(function: str, save: Path) -> Any:
    """What `function` returns, with a small model and mock data."""
    from megatron.bridge import recipes
    from megatron.bridge.training.config import MockGPTDatasetConfig, TokenizerConfig

    config = getattr(recipes, function)()
    config.model.transformer_layer_spec = _layers
    for name, value in (SHAPE | WITHOUT_A_GPU).items():
        setattr(config.model, name, value)
    config.dataset = MockGPTDatasetConfig(
        random_seed=1234,
        reset_attention_mask=False,
        reset_position_ids=False,
        eod_mask_loss=False,
        seq_length=LENGTH,
        num_dataset_builder_threads=1,
        data_sharding=True,
        dataloader_type="single",
        num_workers=0,
    )
    config.tokenizer = TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=VOCABULARY - 1)
    config.train.train_iters = ITERATIONS
    config.train.global_batch_size, config.train.micro_batch_size = 4, 1
    config.validation.eval_interval, config.validation.eval_iters = 1000, 0
    config.scheduler.lr_warmup_iters, config.scheduler.lr_decay_iters = 1, 100
    config.optimizer.lr = 1e-2
    config.optimizer.use_distributed_optimizer = config.ddp.use_distributed_optimizer = True
    config.ddp.overlap_grad_reduce = config.ddp.overlap_param_gather = False
    config.comm_overlap = None
    config.checkpoint.save = config.checkpoint.load = str(save)
    config.checkpoint.save_interval, config.checkpoint.async_save = SAVE_INTERVAL, False
    config.logger.log_interval, config.logger.tensorboard_dir = 1, None
    config.dist.distributed_backend = "gloo"
    config.mixed_precision = "bf16_mixed"
    return config


def _record_losses(log: Path, rank: int, killed_in: int | None) -> None:
    """Have Bridge's loop write each loss of rank 0; rank 1 is killed in iteration `killed_in`."""
    from megatron.bridge.training import train

    step = train.train_step

    def recorded(*args: Any, **kwargs: Any) -> Any:
        state = next(value for value in args if hasattr(value, "train_state"))
        iteration = state.train_state.step + 1
        if rank == 1 and iteration == killed_in:
            os.kill(os.getpid(), signal.SIGKILL)
        result = step(*args, **kwargs)
        if rank == 0:
            line = {"iteration": iteration, "loss": float(result[0]["lm loss"].reshape(-1)[0])}
            with log.open("a") as file:
                file.write(json.dumps(line) + "\n")
        return result

    train.train_step = recorded


def _rank(rank: int, port: int, function: str, folder: Path, run: str, killed_in: int | None) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(RANKS)}
    from megatron.bridge.training.finetune import finetune
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    _record_losses(folder / f"{run}.jsonl", rank, killed_in)
    config = _config(function, folder / run)
    if run == "base":
        pretrain(config, forward_step)
    else:
        config.checkpoint.pretrained_checkpoint = str(folder / "base")
        finetune(config, forward_step)


def _run(function: str, folder: Path, run: str, killed_in: int | None = None) -> None:
    """Run all ranks to their end; if one is killed, kill the others. Raises SystemExit if one fails."""
    port = free_port()
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            try:
                _rank(rank, port, function, folder, run, killed_in)
            except BaseException:
                logging.getLogger(__name__).exception("rank %d of %s", rank, run)
                os._exit(1)
            os._exit(0)  # hollow modules fail at interpreter shutdown
        children.append(child)
    while children:
        child, status = os.wait()
        children.remove(child)
        # The rank's checkpoint writer outlives it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if status and children:
            for other in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
        if status and killed_in is None:
            sys.exit(f"{run}: a rank ended with {os.waitstatus_to_exitcode(status)}")


def main() -> None:
    """Run all and exit."""
    warnings.filterwarnings("ignore")
    folder = Path(sys.argv[1]).resolve()
    _prepare()
    _run("llama32_1b_pretrain_config", folder, "base")
    for mode in ("sft", "peft"):
        function = f"llama32_1b_{mode}_config"
        _run(function, folder, f"{mode}-undisturbed")
        _run(function, folder, f"{mode}-killed", killed_in=KILLED_IN)
        _run(function, folder, f"{mode}-killed")
    os._exit(0)


if __name__ == "__main__":
    main()
