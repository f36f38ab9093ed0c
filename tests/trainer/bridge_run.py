"""A run of Megatron-Bridge under the launcher: a Llama of two layers, tensor parallel on two ranks."""

from pathlib import Path

from megatron_contract.bridge_run import MOCK_DATA, MODEL_FOLDER, BridgeRun, Value

from tests.trainer.gang import Gang
from tests.trainer.warm_process import WarmProcess

ITERATIONS, SAVED_EVERY = 6, 2
LENGTH, VOCABULARY = 64, 256


def write_model(folder: Path) -> Path:
    """Write the configuration of a small Llama, as transformers does, and return its folder."""
    from transformers import LlamaConfig

    config = LlamaConfig(
        num_hidden_layers=2,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=VOCABULARY,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(folder)
    return folder


class BridgeGang(Gang):
    """The launcher of a run of `function`; `overrides` are added to those of all runs."""

    def __init__(
        self, folder: Path, warm: WarmProcess, model: Path, function: str, **overrides: Value
    ) -> None:
        super().__init__(folder, None, nodes=1, warm=warm, ranks=2)
        self.environment["MEGATRON_ENGINE"] = "bridge"
        self.function = function
        self.overrides: dict[str, Value] = {
            MODEL_FOLDER: str(model),
            MOCK_DATA: True,
            "model.seq_length": LENGTH,
            "model.tensor_model_parallel_size": 2,
            "model.pipeline_model_parallel_size": 1,
            "model.context_parallel_size": 1,
            "tokenizer.tokenizer_type": "NullTokenizer",
            "tokenizer.tokenizer_model": None,
            "tokenizer.vocab_size": VOCABULARY - 1,
            "train.train_iters": ITERATIONS,
            "train.global_batch_size": 4,
            "train.micro_batch_size": 1,
            "validation.eval_iters": 0,
            "validation.eval_interval": 1000,
            "scheduler.lr_warmup_iters": 1,
            "scheduler.lr_decay_iters": 100,
            "optimizer.lr": 0.01,
            "checkpoint.save": str(self.save),
            "checkpoint.save_interval": SAVED_EVERY,
        } | {path.replace("__", "."): value for path, value in overrides.items()}

    def arguments(self) -> list[str]:
        return BridgeRun(self.function, self.overrides).to_arguments()
