"""A run of Megatron-Bridge under the launcher: a Llama of two layers, tensor parallel on two ranks."""

import json
import shutil
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from megatron_contract.bridge_run import MOCK_DATA, MODEL_FOLDER, BridgeRun, Value
from megatron_operator.manifests import Manifests

from testkit.weights.warm import Ended, WarmConverter
from tests.trainer.gang import Gang
from tests.trainer.warm_process import WarmProcess

ITERATIONS, SAVED_EVERY = 6, 2
LENGTH, VOCABULARY = 64, 256
WORDS = [*string.ascii_lowercase, *string.digits]
_WEIGHTS = "model.safetensors"


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
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of fewer words than the model has, each a digit or a letter between spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "</s>", *WORDS]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")
    fast.save_pretrained(folder)


def write_samples(folder: Path) -> None:
    """Write questions whose answer repeats their letters."""
    folder.mkdir()
    lines = [
        json.dumps({"input": f"{WORDS[i % 26]} {WORDS[i % 7]}", "output": f"{WORDS[i % 7]} {WORDS[i % 26]}"})
        for i in range(64)
    ]
    for name in ("training", "validation"):
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def in_float32(model: Path, folder: Path) -> Path:
    """A copy of a model of one file whose weights have the same values in float32."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    weights = {name: tensor.float() for name, tensor in load_file(model / _WEIGHTS).items()}
    save_file(weights, folder / _WEIGHTS, metadata={"format": "pt"})
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


class RecipeGang(BridgeGang):
    """The launcher of a run with the arguments and the engine that the operator renders for a recipe.

    `data` stands for the data volume, the gang's own folder for that of the checkpoints. `overrides` of
    Bridge's configuration make the model small that a function has itself.
    """

    def __init__(
        self,
        folder: Path,
        warm: WarmProcess,
        data: Path,
        spec: dict[str, Any],
        overrides: Mapping[str, Value] = MappingProxyType({}),
    ) -> None:
        super().__init__(folder, warm, data, "of the recipe")
        self.ranks_per_node = spec["accelerator"]["count"]
        self._data_volume, self._small = data, overrides
        self.edit(spec)

    def edit(self, spec: dict[str, Any]) -> None:
        """Have the next start be that of this recipe."""
        run = BridgeRun.from_arguments(arguments_in(rendered_container(spec), self._data_volume, self.save))
        self._arguments = BridgeRun(run.function, {**run.overrides, **self._small}).to_arguments()
        self._spec = spec

    def arguments(self) -> list[str]:
        return self._arguments

    def convert(self, converter: WarmConverter, role: str) -> Ended:
        """Run what the Job of a conversion runs: that of the role `import`, `export` or `export-best`."""
        objects = rendered_objects(self._spec)
        jobs = {
            "import": objects.import_job,
            "export": objects.export_job,
            "export-best": objects.export_best_job,
        }
        job = jobs[role]
        assert job is not None, role
        here = {"/data/": f"{self._data_volume}/", "/checkpoints/run": str(self.save)}
        words = [str(word) for word in job["spec"]["template"]["spec"]["containers"][0]["args"]]
        for mounted, folder in here.items():
            words = [f"{folder}{w.removeprefix(mounted)}" if w.startswith(mounted) else w for w in words]
        return converter.convert(*words, log=self.folder / f"{role}.log")


def rendered_preparation(spec: dict[str, Any], data: Path, save: Path | None = None) -> list[str]:
    """Arguments of the Job that prepares the data of a recipe.

    `data` stands for the data volume, and `save` for the run's checkpoints, where the Job mounts them.
    """
    job = rendered_objects(spec).prepare_job
    assert job is not None
    (container,) = job["spec"]["template"]["spec"]["containers"]
    words = [str(word).replace('"/data/', f'"{data}/') for word in container["args"]]
    words = [f"{data}/{word.removeprefix('/data/')}" if word.startswith("/data/") else word for word in words]
    return [word.replace("/checkpoints/run", str(save or data / "checkpoints")) for word in words]


def rendered_container(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The container in the job of a recipe."""
    template = rendered_objects(dict(spec)).job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    (container,) = template["spec"]["containers"]
    return dict(container)


def arguments_in(container: Mapping[str, Any], data: Path, save: Path) -> list[str]:
    """Arguments of a container, with `data` for the data volume and `save` for the run's checkpoints."""
    return [
        str(word).replace('"/data/', f'"{data}/').replace('"/checkpoints/run', f'"{save}')
        for word in container["args"]
    ]


def rendered_objects(spec: dict[str, Any]) -> Manifests:
    """The objects that the operator creates for a recipe of the name `run`."""
    from megatron_operator import catalog, manifests
    from megatron_operator.api.recipe import MegatronRecipeSpec
    from megatron_operator.cli.default_platform import default_platform
    from megatron_operator.planner import admit

    admitted = admit("run", MegatronRecipeSpec.model_validate(spec), default_platform(), catalog.load())
    return manifests.build(admitted, "")


NewRun = Callable[..., BridgeGang]
"""Makes a run of a kind (pretrain, sft, peft), with these overrides."""
