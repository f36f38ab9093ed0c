"""LoRA by Megatron-Bridge on a GPU of this machine, from Hugging Face weights and back to them.

`make gpu-check-fine-tuning`: each of MODELS at full size with random weights is imported, trained as the
operator renders its recipe, killed once, merged and exported. The larger one needs 60 GB of disk.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml

from tests.gpu.hardware.main import device, kept, used_bytes
from tests.gpu.hardware.measurements import ask_cli, hardware_of
from tests.gpu.hardware.runs import library_environment
from tests.trainer.bridge_run import arguments_in, rendered_container, write_samples, write_tokenizer
from tests.trainer.gang import Gang

ITERATIONS, SAVED_EVERY, KILLED_AT = 24, 10, 13
MANIFEST = {
    "apiVersion": "megatron.training/v1beta1",
    "kind": "MegatronRecipe",
    "metadata": {"name": "run"},
}
LLAMA = {"head_dim": 128, "vocab_size": 128256, "rope_theta": 500000.0, "max_position_embeddings": 8192}
MODELS: dict[str, dict[str, Any]] = {
    "llama3.2-1b-lora": LLAMA
    | {
        **{"num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 8192, "head_dim": 64},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True},
    },
    "llama3-8b-lora": LLAMA
    | {
        **{"num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False},
    },
}
"""Recipe -> transformers' LlamaConfig."""


class FineTuning(Gang):
    """A run of one pod with one rank, with the arguments that the operator renders for a recipe."""

    def __init__(self, folder: Path, data: Path, spec: Mapping[str, Any]) -> None:
        folder.mkdir()
        super().__init__(folder, None, nodes=1, ranks=1)
        container = rendered_container(spec)
        self.environment |= {"MEGATRON_ENGINE": "bridge", "MEGATRON_PLATFORM": "gpu"}
        self.environment |= library_environment(container)
        self._arguments = arguments_in(container, data, self.save)

    def arguments(self) -> list[str]:
        return self._arguments


def write_model(folder: Path, config: Mapping[str, Any]) -> None:
    """Write a Llama with random weights in bfloat16, initialised on the GPU, and a tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(**config, architectures=["LlamaForCausalLM"]))
    model.save_pretrained(folder)
    write_tokenizer(folder)


def spec(name: str, hardware: str) -> dict[str, Any]:
    """Return the spec of a recipe whose data volume has `model`, `weights` and `samples`."""
    return {
        "recipe": name,
        "accelerator": {"type": hardware, "count": 1},
        "init": {"modelFolder": "/data/model", "from": {"megatron": {"path": "/data/weights"}}},
        "data": {"volume": {"claimName": "corpus"}, "datasetRoot": "samples"},
        "training": {"trainIters": ITERATIONS, "evalIters": 0, "lr": 1e-3, "lrWarmupIters": 1},
        "checkpoint": {"saveInterval": SAVED_EVERY, "volume": {"size": "1Ti"}},
    }


@contextmanager
def largest_use() -> Iterator[Callable[[], int]]:
    """Sample the memory in use on the device. The value returns the largest so far, in bytes."""
    most, done = [0], threading.Event()

    def sample() -> None:
        while not done.wait(0.05):
            most[0] = max(most[0], used_bytes())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield lambda: most[0]
    finally:
        done.set()
        thread.join()


def convert(*words: str | Path) -> str:
    """Run `megatron-convert`. Returns its seconds and last line. Raises AssertionError."""
    started = time.monotonic()
    command = [sys.executable, "-m", "megatron_trainer.weights.command", *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    return f"{time.monotonic() - started:.0f} s, {done.stdout.strip().splitlines()[-1]}"


def report(name: str, what: str, value: object) -> None:
    """Print a figure of a recipe."""
    print(f"{name}: {what}: {value}", flush=True)


def prepare(name: str, folder: Path) -> None:
    """Write samples and a model, and import it, into a new folder."""
    folder.mkdir(parents=True)
    started = time.monotonic()
    # In a process of its own, so that no context of CUDA is left.
    writer = multiprocessing.get_context("spawn").Process(
        target=write_model, args=(folder / "model", MODELS[name])
    )
    writer.start()
    writer.join()
    assert writer.exitcode == 0
    write_samples(folder / "samples")
    report(name, "model written", f"{time.monotonic() - started:.0f} s")
    report(name, "import", convert("import", "--from", folder / "model", "--to", folder / "weights"))


def train(name: str, folder: Path) -> None:
    """Train on what `prepare` wrote, kill the rank once, and compare with the plan."""
    product = device().product
    hardware = hardware_of(product)
    assert hardware is not None, f"the planner does not know {product}"
    recipe = spec(name, hardware)
    plan = ask_cli("plan", {**MANIFEST, "spec": recipe})
    run = FineTuning(folder / "run", folder, recipe)
    before, started = used_bytes(), time.time()
    with largest_use() as largest:
        run.start()
        run.await_iteration(KILLED_AT)
        killed = time.time()
        run.kill_rank(0)
        code = run.wait()
    assert code == [0], run.log()[-4000:]
    first, *others = run.records()
    again = next(record for record in others if record["generation"] == 2)
    report(name, "ranks are forked", "ranks start cold" not in run.log())
    report(
        name, "start to first step", f"{first['time'] - started:.1f} s, the step {first['stepSeconds']:.1f} s"
    )
    report(name, "kill to next step", f"{again['time'] - killed:.1f} s, iteration {again['iteration']}")
    step = statistics.median(record["stepSeconds"] for record in others)
    expected, planned = plan["expected"], plan["memoryPerGpu"]["total"]
    report(name, "step", f"{step * 1e3:.1f} ms, planned {expected['stepSeconds'] * 1e3:.1f} ms")
    tokens, *limits = (expected[f"tokensPerSecondPerGpu{which}"] for which in ("", "Low", "High"))
    report(
        name,
        "tokens/s",
        f"{tokens * expected['stepSeconds'] / step:,.0f}, planned {tokens:,.0f} "
        f"({limits[0]:,.0f} to {limits[1]:,.0f})",
    )
    used = f"{largest() / 2**30:.2f} GiB, {before / 2**30:.2f} GiB before"
    report(name, "memory of the device", f"{used}; planned {planned / 2**30:.2f} GiB")
    report(name, "losses", ", ".join(f"{record['lmLoss']:.3f}" for record in run.records()[::4]))


def export(name: str, folder: Path) -> None:
    """Merge the adapters that `train` saved, and compare transformers' losses before and after."""
    run, base = folder / "run" / "checkpoints", folder / "model"
    report(name, "export", convert("export", "--from", run, "--to", folder / "exported", "--base", base))
    for which in ("model", "exported"):
        report(name, f"transformers' loss of answers, {which}", f"{loss_of_answers(folder, which):.4f}")


def loss_of_answers(folder: Path, which: str) -> float:
    """Return transformers' mean loss of the samples' answers with the weights in `which`, on the GPU."""
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    samples = [json.loads(line) for line in (folder / "samples" / "training.jsonl").read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = LlamaForCausalLM.from_pretrained(folder / which, dtype=torch.bfloat16).cuda()
    losses = []
    for sample in samples[:16]:
        question = tokenizer(sample["input"])["input_ids"]
        answer = [*tokenizer(sample["output"])["input_ids"], tokenizer.eos_token_id]
        ids = torch.tensor([[*question, *answer]]).cuda()
        labels = ids.clone()
        labels[:, : len(question)] = -100
        losses.append(float(model(input_ids=ids, labels=labels).loss))
    return statistics.mean(losses)


PARTS = {"prepare": prepare, "train": train, "export": export}


def main() -> None:
    """Do the parts that are named, in this order, for each recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, help="keep models and checkpoints there")
    parser.add_argument("--recipe", choices=MODELS, action="append", help="all by default")
    parser.add_argument("--part", choices=PARTS, action="append", help="all by default")
    arguments = parser.parse_args()
    pynvml.nvmlInit()
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    with kept(arguments.folder) as folder:
        for name in arguments.recipe or MODELS:
            for part in arguments.part or PARTS:
                PARTS[part](name, folder / name)


if __name__ == "__main__":
    main()
