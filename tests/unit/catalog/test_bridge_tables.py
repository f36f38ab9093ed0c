"""Megatron-Bridge's functions: tables, names, and recipes that name one."""

from pathlib import Path
from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import Catalog, bridge_tables, loader
from megatron_operator.catalog.catalog import DATA_DIR
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.cli.default_platform import default_platform

TABLE = f"""
{"  ".join(bridge_tables.COLUMNS)}
tiny_pretrain_8gpu_h100_fp8cs_config 8xh100 fp8cs 2 4 5 1 - - 1 1 64 4096 0.0003 3e-05 500 1000 {{further}}
"""


def resolved(recipe: str, accelerator: str, count: int, **spec: Any) -> ResolvedRecipe:
    asked = {"recipe": recipe, "accelerator": {"type": accelerator, "count": count}} | spec
    platform = default_platform()
    return catalog.resolve(
        MegatronRecipeSpec.model_validate({"data": {"mockData": True}} | asked), platform, catalog.load()
    )


def test_a_line_of_a_table_is_a_layout() -> None:
    (layout,) = bridge_tables.layouts(
        TABLE.format(further="benchmark optimizer=dist_muon also=a_config,b_config")
    )
    assert layout["accelerators"] == ["h100-sxm", "h200"]
    assert layout["count"] == 8
    assert layout["parallelism"] == {
        "tensorModelParallelSize": 2,
        "pipelineModelParallelSize": 4,
        "numVirtualStagesPerPipelineRank": 5,
        "contextParallelSize": 1,
        "sequenceParallel": True,
    }
    assert layout["training"] == {
        "bf16": True,
        "fp8Format": "hybrid",
        "fp8Recipe": "tensorwise",
        "microBatchSize": 1,
        "globalBatchSize": 64,
        "seqLength": 4096,
        "lr": 3e-4,
        "minLr": 3e-5,
        "lrWarmupIters": 500,
        "trainIters": 1000,
        "optimizer": "dist_muon",
    }
    assert layout["alsoNamed"] == ["a_config", "b_config"]
    assert layout["source"].endswith("tiny_pretrain_8gpu_h100_fp8cs_config (benchmark)")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("function on\n", "the first line is not"),
        (" ".join(bridge_tables.COLUMNS), "no function"),
        (" ".join(bridge_tables.COLUMNS) + "\nf_config 8xh100 bf16 1", "f_config has 4 of 17 columns"),
        (TABLE.format(further="colour=red"), "colour is not an option of this table"),
        (TABLE.replace("fp8cs 2", "fp9 2").format(further=""), "fp9"),
        (TABLE.replace("4096", "4k").format(further=""), "tiny_pretrain_8gpu_h100_fp8cs_config: invalid"),
    ],
)
def test_an_error_of_a_table_names_its_line(table: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(bridge_tables.layouts(table))


def test_scanning_and_parsing_the_shipped_files_agree() -> None:
    scanned, parsed = loader.scan(DATA_DIR), loader.parse(DATA_DIR)
    assert parsed.problems == scanned.problems == []
    assert {n: (s.template, s.aliases) for n, s in scanned.sources.items()} == {
        n: (s.template, s.aliases) for n, s in parsed.sources.items()
    }
    assert {n: t.functions for n, t in scanned.tables.items()} == {
        n: t.functions for n, t in parsed.tables.items()
    }


def test_every_function_is_found_by_all_its_names() -> None:
    shipped = catalog.load()
    for name, entry in shipped.functions().items():
        assert shipped.get(name).name == entry
        layout = shipped.function(name)
        assert layout is not None
        assert name == layout.function or name in (layout.also_named or [])


def test_no_function_and_no_alias_has_the_name_of_an_entry() -> None:
    shipped = catalog.load()
    names = shipped.names()
    aliases = [alias for entry in shipped for alias in entry.aliases]
    everything = [*names, *aliases, *shipped.functions()]
    assert len(everything) == len(set(everything))


FAMILIES = {
    "Llama": [
        "llama3.2-1b",
        "llama3-8b-16k",
        "llama3-70b",
        "llama3.1-405b",
        "llama3-8b-sft",
        "llama3.1-405b-lora",
    ],
    "Qwen2 and Qwen2.5": ["qwen2-0.5b", "qwen2.5-72b", "qwen2-7b-sft", "qwen2.5-14b-lora"],
    "Qwen3": ["qwen3-0.6b", "qwen3-32b", "qwen3-8b-sft", "qwen3-0.6b-sft", "qwen3-14b-lora"],
    "Qwen3 MoE": ["qwen3-30b-a3b", "qwen3-235b-a22b", "qwen3-235b-a22b-sft", "qwen3-30b-a3b-lora"],
    "Qwen3-Next": ["qwen3-next-80b-a3b", "qwen3-next-80b-a3b-sft"],
    "DeepSeek": ["deepseek-v2", "deepseek-v2-lite", "deepseek-v3"],
    "GLM-4.5": ["glm4.5-355b", "glm4.5-air", "glm4.5-355b-sft", "glm4.5-air-lora"],
    "Gemma": ["gemma2-2b", "gemma2-9b-sft", "gemma2-27b-lora", "gemma3-1b", "gemma3-1b-lora"],
    "Nemotron-H and Nemotron": [
        "nemotron-h-56b",
        "nemotron-h-4b-lora",
        "nemotron3-nano-30b-a3b",
        "nemotron3-super-120b-a12b-sft",
        "nemotron-nano2-9b",
    ],
    "other models": ["gpt-oss-20b", "gpt-oss-120b", "kimi-k2", "vanilla-gpt", "gpt3-175b", "llama2-7b"],
    "VLM": [
        "qwen2.5-vl-7b-sft",
        "qwen3-vl-8b-lora",
        "qwen3.5-vl-397b-a17b-sft",
        "gemma3-vl-27b-sft",
        "glm4.5v-106b-sft",
        "nemotron-nano2-vl-12b-lora",
    ],
    "diffusion": ["flux1-12b", "wan2.1-14b", "wan2.1-1.3b-sft"],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_of_the_recipe_index_has_its_recipes(family: str) -> None:
    shipped = catalog.load()
    for name in FAMILIES[family]:
        mode = "sft" if name.endswith("-sft") else "lora" if name.endswith("-lora") else "pretrain"
        assert mode in shipped.get(name).modes


def test_a_named_function_sets_layout_batch_rates_and_length() -> None:
    r = resolved("qwen3_235b_a22b_pretrain_256gpu_h100_fp8cs_config", "h100-sxm", 256)
    assert (r.recipe, r.engine) == ("qwen3-235b-a22b", "megatron")
    assert r.layout is not None
    assert (r.parallelism.pipeline_model_parallel_size, r.parallelism.expert_model_parallel_size) == (8, 32)
    assert r.parallelism.account_for_embedding_in_pipeline_split
    assert r.training.fp8_recipe == "tensorwise"
    assert (r.training.global_batch_size, r.training.train_iters) == (8192, 50)


def test_a_function_on_other_accelerators_sets_all_but_the_layout() -> None:
    r = resolved("llama3_70b_pretrain_64gpu_gb200_fp8mx_config", "h100-sxm", 128)
    assert r.layout is None
    assert r.parallelism.tensor_model_parallel_size is None
    assert r.training.train_iters == 50
    assert "is for 64 x gb200, not for 128 x h100-sxm" in " ".join(r.notes)


def test_unsupported_settings_of_a_function_have_notes() -> None:
    r = resolved("kimi_k2_pretrain_256gpu_gb300_nvfp4_config", "gb300", 256)
    assert r.training.optimizer == "adam"
    assert "trains with dist_muon; here it is adam" in " ".join(r.notes)
    assert r.training.fp4_format == "e2m1"
    assert "NVFP4 is estimated at the speed of FP8" in r.notes
    other = resolved("kimi_k2_pretrain_256gpu_gb300_nvfp4_config", "gb300", 512)
    assert "computes in NVFP4; without its layout it is BF16" in " ".join(other.notes)
    assert other.training.fp4_format is None


def test_a_bridge_entry_is_not_started_by_a_benchmark() -> None:
    r = resolved("llama3-8b-sft", "h100-sxm", 8)
    assert r.engine == "bridge"
    assert r.mode == "sft"
    assert r.function is not None
    assert not r.function.benchmark
    assert r.layout is None, "the only layout for 8 is a benchmark's, with settings that are not passed on"
    assert r.training.train_iters == r.function.training.train_iters


def test_a_bridge_entry_rejects_settings_of_megatron_core() -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        resolved("wan2.1-14b", "h100-sxm", 16, model={"numLayers": 2}, megatronArgs={"log-throughput": True})
    assert {error.field for error in refused.value.errors} == {"spec.model", "spec.megatronArgs"}


def test_a_users_own_table_is_read_and_checked(tmp_path: Path) -> None:
    rows = TABLE.format(further="").strip().replace("\n", "\n      ")
    (tmp_path / "own.yaml").write_text(
        "entries:\n  own: {extends: bridge, description: d, source: s}\n"
        f"functions:\n  own: |\n      {rows}\n  nobody: |\n      {rows}\n"
    )
    own: Catalog = catalog.load(tmp_path)
    assert own.get("tiny_pretrain_8gpu_h100_fp8cs_config").name == "own"
    assert own.get("own").training.global_batch_size == 64
    assert "own.yaml: functions.nobody" in {problem.field for problem in own.problems}
