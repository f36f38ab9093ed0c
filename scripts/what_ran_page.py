"""docs/catalog/what-ran.md: every recipe of the catalog by what was run of it, and why no more."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, get_args

import yaml
from megatron_operator import catalog
from megatron_operator.api.platform import AcceleratorProfile, ImagePackage
from megatron_operator.catalog import Entry, bridge_support

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from testkit import fine_tuned, latent_cases, own_loop, pretrained  # noqa: E402  # found below ROOT

NOT_CALLABLE: Final = ROOT / "tests" / "bridge" / "not_callable.yaml"
WITH_KERNELS: Final = AcceleratorProfile(image_has=list(get_args(ImagePackage)))
"""GPUs whose image has every package."""

HEAD: Final = (
    "Recipe",
    "Engine",
    "Mode",
    "Arguments",
    "Settings",
    "Trained as",
    "Not started or not trained because",
)
_INTRODUCTION: Final = """\
*Arguments*, engine `megatron`: published layouts whose arguments Megatron's own parser took in `make test`,
which also builds the model without weights and compares its parameters with those of the plan; without a
published layout, the plan of one count. `make test-gpu-path` builds these models with Transformer Engine's
layers. Engine `bridge`: functions that were called in Megatron-Bridge 0.6.2 and returned the settings of the
catalog, of all that the recipe has.

*Settings*: every argument that the operator renders changed something in Megatron, or all that it renders was
set in what the functions return (`make test`).

*Trained as*: the recipe whose small model was trained on CPU ranks, with the settings that the operator
renders. It stands for all recipes of its architecture and mode; those of engine `megatron` have the same
kind of layers, and other sizes. Of engine `megatron` a model of two layers was imported, trained for three
steps on four ranks (TP 2 and PP 2, or EP 2 and PP 2) in FP32 and exported (`make bridge-training`), or one
of random weights was trained for two steps on one rank (`make test`; those are listed in
`testkit/own_loop.py`, `ALONE`); `tiny-gpt` is trained in pods of the local cluster (`make faults`). Of
engine `bridge` a model of two layers (EXAONE 4.5, Gemma 4, GLM-5.2, K-EXAONE, MiniMax-M3, Qwen3-Next,
Qwen3.5: four, Gemma 3 and Nemotron: six) was trained for at least two steps on two or four ranks (`make
bridge-training`); `make bridge-recipes` trains one of every function for two on a single rank (`make test`
leaves out those that differ from another in size or number of GPUs alone), except
`moonlight_16b_sft_8gpu_h100_bf16_tp1_config`, which is refused on one rank. For SFT and LoRA transformers
or the project made it, and it was imported; models that read images or sound had some. Pretraining began
with random weights and read real text, except that of a projector, which began as SFT does, and that of
diffusion models, which read random latents; from imported weights it was run [as
well](../bridge-pretraining.md#weights-of-hugging-face). Layers were Megatron's own instead of Transformer
Engine's.

On a GPU llama3.2-1b-lora alone was run ([hardware](../hardware.md))."""
_SIZES: Final = frozenset(
    {"numLayers", "hiddenSize", "ffnHiddenSize", "numAttentionHeads", "kvChannels", "vocabSize"}
    | {"maxPositionEmbeddings", "makeVocabSizeDivisibleBy", "rotaryBase", "normEpsilon", "initMethodStd"}
    | {"attentionDropout", "hiddenDropout", "untieEmbeddingsAndOutputWeights", "moeAuxLossCoeff"}
    | {"moeGroupedGemm", "moePermuteFusion", "moeTokenDispatcherType"}
)
"""Settings of a model that do not change the kind of its layers, or the kernels that a CPU has instead."""
_NO_SMALL_MODEL: Final = "no small model with its layers is trained by the own loop"


@dataclass(frozen=True)
class Row:
    """What was run of a recipe."""

    entry: Entry
    arguments: str
    settings: bool
    trained_as: str
    """Name of a recipe; empty if no model of its architecture was trained in its mode."""
    reason: str
    """Why it is not started, or not trained; empty if it is."""


def page(made: str, entries: Iterable[Entry]) -> str:
    """The page as Markdown; `made` is the comment at its top."""
    rows = [row(entry) for entry in entries]
    started = Counter(each.entry.engine for each in rows if each.entry.starts)
    trained = Counter(each.entry.engine for each in rows if each.trained_as)
    of_all = Counter(each.entry.engine for each in rows)
    with_kernels = sum(starts_with_kernels(each.entry) for each in rows)
    counts = [
        (f"`{engine}`", str(of_all[engine]), str(started[engine]), str(trained[engine]))
        for engine in ("megatron", "bridge")
    ]
    return "\n".join(
        [
            made,
            "",
            "# What ran of each recipe",
            "",
            *table(("Engine", "Recipes", "Started", "A model of the architecture trained"), counts),
            "",
            f"{with_kernels} more of engine `bridge`, those with settings and a reason, start on CPUs and on"
            " GPUs whose profile names the packages in `imageHas`.",
            "",
            _INTRODUCTION,
            "",
            *table(HEAD, map(_cells, rows)),
            "",
            *_refused_functions(rows),
            "",
        ]
    )


def _refused_functions(rows: Iterable[Row]) -> list[str]:
    """The section with the number of functions that the operator does not start, by reason."""
    obstacles = {
        each.function: each.obstacle
        for row in rows
        for each in row.entry.layouts
        if each.function is not None
    }
    reasons = Counter(filter(None, obstacles.values()))
    listed = sorted(reasons.items(), key=lambda each: (-each[1], each[0]))
    return [
        "## Functions that are not started",
        "",
        f"Of the {len(obstacles)} functions of Megatron-Bridge in the catalog {reasons.total()} are not"
        " started.",
        "",
        *table(("Because it", "Functions"), ((reason, str(count)) for reason, count in listed)),
    ]


def _cells(row: Row) -> tuple[str, ...]:
    entry = row.entry
    link = f"[{entry.name}]({entry.family}.md#{anchor(entry.name)})"
    seen = ", and on a GPU" if entry.name in bridge_support.SEEN_ON_A_GPU else ""
    settings, trained = "yes" if row.settings else "", f"{row.trained_as}{seen}"
    return (link, entry.engine, entry.modes[0], row.arguments, settings, trained, row.reason)


def row(entry: Entry) -> Row:
    """What was run of a recipe."""
    trained = _trained().get(_kind(entry), ())
    stand_in = entry.name if entry.name in trained else next(iter(trained), "")
    if entry.engine == "megatron":
        arguments = f"{len(entry.layouts)} of {len(entry.layouts)}" if entry.layouts else "planned"
        return Row(entry, arguments, True, stand_in, "" if stand_in else _NO_SMALL_MODEL)
    starts = entry.on(WITH_KERNELS).starts
    of_release = [each for each in entry.layouts if each.function and (each.own or not each.later)]
    called = [each for each in of_release if each.function not in _not_callable()]
    arguments = f"{len(called)} of {len(entry.layouts)}" if entry.layouts else "no function"
    return Row(entry, arguments, starts, stand_in if starts else "", entry.obstacle or "")


def starts_with_kernels(entry: Entry) -> bool:
    """Whether it starts on GPUs only if the image has what the project's lacks."""
    return not entry.starts and entry.on(WITH_KERNELS).starts


@cache
def _not_callable() -> frozenset[str]:
    reasons: dict[str, Any] = yaml.safe_load(NOT_CALLABLE.read_text())
    return frozenset(name for group in reasons.values() for name in group["functions"])


@cache
def _trained() -> dict[tuple[object, ...], list[str]]:
    """Architecture and mode -> the recipes with which a model of it was trained."""
    found: dict[tuple[object, ...], list[str]] = {}
    for name in dict.fromkeys(_names()):
        found.setdefault(_kind(catalog.load().get(name)), []).append(name)
    return found


def _names() -> Iterator[str]:
    for cases in (
        *(fine_tuned.CASES, fine_tuned.IMAGE_CASES, fine_tuned.FROZEN_CASES, fine_tuned.SOUND_CASES),
        *(fine_tuned.OMNI_CASES, fine_tuned.NEMOTRON_CASES, pretrained.CASES, own_loop.CASES),
    ):
        yield from (case.recipe for case in cases)
    yield from (*latent_cases.PRETRAINED, *latent_cases.FINE_TUNED, *own_loop.ALONE, own_loop.IN_PODS)


def _kind(entry: Entry) -> tuple[object, ...]:
    """What recipes have in common of which one stands for the others: engine, modes, kind of layers."""
    if entry.engine == "megatron":
        return (entry.engine, entry.modes, _layers(entry))
    function = next((each.function for each in entry.layouts if each.function), "")
    # Diffusion models and models of the recipe's own sizes have no class of transformers.
    return (entry.engine, entry.modes, bridge_support.architecture(function) or function.split("_")[0])


def _layers(entry: Entry) -> frozenset[tuple[str, object]]:
    """Switches and choices of the model, and which of its other settings are set."""
    return frozenset(
        (name, value if isinstance(value, bool | str) else "set")
        for name, value in entry.model.wire().items()
        if name not in _SIZES
    )


def anchor(heading: str) -> str:
    """The anchor that code hosting sites give to a heading: no punctuation but hyphens."""
    return heading.replace(".", "")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *(list(each) for each in rows)]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
