"""A small Step-3.5 on two tensor-parallel ranks: logits and gradients are those of transformers' model."""

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from testkit.weights.families import Family, by_name, write_model
from testkit.weights.loading import load

_RANKS = 2
_ATTENTION = "decoder.layers.1.self_attention.linear_qkv.weight"
_PARTS = ("q_proj", "k_proj", "v_proj", "g_proj")
_SOURCE, _IMPORTED = "source", "imported"


def _dense() -> Family:
    """Without experts, which at TP 2 need split sequences, for which a CPU has no norm."""
    family = by_name("Step-3.5 without MTP")
    return replace(family, sizes={**family.sizes, "moe_layers_enum": ""})


def prove_split(folder: Path) -> dict[str, float]:
    """Return the largest differences of logits and of gradients of attention, and what they are of.

    Every step is in a process of its own: a fork of one that has computed would wait for its threads.
    """
    _wait([_fork(_import, folder)])
    _wait([_fork(_compute, folder, rank) for rank in range(_RANKS)])
    return _compare(folder)


def _import(folder: Path) -> None:
    from megatron_trainer.weights import conversion

    write_model(_dense(), folder / _SOURCE)
    conversion.import_weights(folder / _SOURCE, folder / _IMPORTED)


def _compare(folder: Path) -> dict[str, float]:
    import torch
    from megatron_trainer.bridge import step

    from testkit.weights import step_model

    step_model.install()
    model = step_model.Step3p5ForCausalLM.from_pretrained(
        folder / _SOURCE, dtype=torch.float32, attn_implementation="eager"
    )
    ranks = [torch.load(folder / f"{rank}.pt") for rank in range(_RANKS)]
    expected = model(_ids()).logits
    expected.square().sum().backward()
    attention = model.model.layers[1].self_attn
    wanted = [getattr(attention, part).weight.grad for part in _PARTS]
    settings = SimpleNamespace(num_attention_heads=6, num_query_groups=2, kv_channels=16)
    found = step.split(settings, torch.cat([rank["gradient"] for rank in ranks]))
    logits = torch.cat([rank["logits"] for rank in ranks], dim=-1)
    return {
        "logits": float((logits - expected).abs().max()),
        "largest logit": float(expected.abs().max()),
        "gradients": max(float((x - y).abs().max()) for x, y in zip(found, wanted, strict=True)),
        "least of the parts": min(float(part.abs().max()) for part in wanted),
    }


def _ids() -> Any:
    import torch

    return (torch.arange(32) * 7 % 250)[None]


def _wait(children: list[int]) -> None:
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        raise RuntimeError(f"processes ended with {codes}")


def _fork(work: Callable[..., None], *args: Any) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work(*args)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _compute(folder: Path, rank: int) -> None:
    """Write logits of a rank's part of the vocabulary, and the gradient of its rows of attention."""
    import torch
    from megatron_trainer.weights import checkpoint, cpu_model, huggingface_folder

    make = cpu_model.make_provider

    def split(bridge: Any, dtype: str) -> Any:
        provider = make(bridge, dtype)
        provider.tensor_model_parallel_size = _RANKS
        return provider

    with _ranks(rank, folder), mock.patch.object(cpu_model, "make_provider", split):
        bridge = cpu_model.make_bridge(huggingface_folder.read(folder / _SOURCE, "", weights=True))
        model = cpu_model.make_model(bridge, "float32")
        load(checkpoint.find(folder / _IMPORTED, ""), model)
        logits = model(_ids(), torch.arange(32)[None], None)
        logits.square().sum().backward()
        gradient = dict(model.named_parameters())[_ATTENTION].grad
        torch.save({"logits": logits.detach(), "gradient": gradient}, folder / f"{rank}.pt")


@contextlib.contextmanager
def _ranks(rank: int, folder: Path) -> Iterator[None]:
    import torch.distributed as dist
    from megatron.core import parallel_state, tensor_parallel

    store = dist.FileStore(str(folder / "store"), _RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=_RANKS)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=_RANKS)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
