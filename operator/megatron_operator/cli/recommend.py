"""`megatron recommend`: the recipe for a model, a mode and a number of accelerators."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.cli import printing
from megatron_operator.cli.inputs import (
    CATALOG_DIRECTORY,
    Count,
    ModeChoice,
    complete_accelerator,
    complete_recipe,
    single_option,
    source_words,
)
from megatron_operator.cli.tables import Column, print_fitting, print_item, print_wrapped

if TYPE_CHECKING:
    from megatron_operator.planner.candidates import Query
    from megatron_operator.planner.recommend import Recommendation


@click.command("recommend")
@single_option(
    "--model",
    metavar="NAME",
    shell_complete=complete_recipe,
    help="A name (also of Hugging Face), a family, a size (8b) or a kind (moe).",
)
@single_option("--gpus", type=Count(1, 1_000_000), metavar="N", required=True, help="Number of accelerators.")
@single_option("--accelerator", metavar="TYPE", shell_complete=complete_accelerator, help="Accelerator type.")
@click.option(
    "--mode",
    type=ModeChoice(),
    default="pretrain",
    show_default=True,
    help="Purpose.",
)
@single_option(
    "--seq-length",
    type=Count(1, 100_000_000),
    metavar="N",
    help="Tokens per sample; default the recipe's.",
)
@single_option("--platform", type=click.Path(path_type=Path), help="Platform file of the cluster.")
@single_option("--catalog", type=CATALOG_DIRECTORY, help="Directory with additional recipes.")
@printing.output_option
def command(
    model: str | None,
    gpus: int,
    accelerator: str | None,
    mode: str,
    seq_length: int | None,
    platform: Path | None,
    catalog: Path | None,
    output: str,
) -> None:
    """Find the recipe for a model, a mode and a number of GPUs, with reasons and runners-up.

    Exits with 2 where the recipe does not fit, or the operator starts none of a size or
    kind, after printing what fits.

    \b
    megatron recommend --model llama3 --gpus 64 --accelerator h100-sxm
    megatron recommend --model 8b --gpus 32 --seq-length 65536
    megatron recommend --model 8b --gpus 1 --mode lora
    megatron recommend --model moe --gpus 8
    """
    from megatron_operator.cli.limits import planning_limits
    from megatron_operator.cli.planning import load_catalog, load_platform
    from megatron_operator.planner.candidates import Query
    from megatron_operator.planner.instead import names_one_model, what_fits
    from megatron_operator.planner.recommend import recommend

    query = Query(model, gpus, accelerator, mode, seq_length)
    on, library = load_platform(platform), load_catalog(catalog)
    found = recommend(query, on, library, planning_limits)
    asks_for_many = model is not None and not names_one_model(model)
    sources = "".join(f" {shlex.quote(word)}" for word in source_words(platform, catalog))
    none_starts = asks_for_many and found[0].plan is not None and not found[0].runnable
    if output != "table":
        printing.print_data([_document(each, query, sources) for each in found], output)
    else:
        fits = what_fits(query, found, on, library, planning_limits) if none_starts else None
        _print(found, query, sources, fits)
    if found[0].plan is None or none_starts:
        raise click.exceptions.Exit(printing.EXIT_INVALID)


_COLUMNS = (
    Column("runners-up"),
    Column("parameters", optional=True),
    Column("layout", optional=True),
    Column("tokens/s/GPU", optional=True),
    Column("why"),
)


def _print(found: "list[Recommendation]", query: "Query", sources: str, fits: list[str] | None) -> None:
    """The best and the others; `fits` is None, or what the operator starts where it starts none of them.

    `sources`: the options that name platform and catalog.
    """
    best, *others = found
    if fits is not None:
        gpus = f"{query.gpus} GPU{'s' if query.gpus > 1 else ''}"
        start = f"The operator starts no {query.mode} recipe for {query.model} on {gpus}"
        instead = f"; it starts {', or '.join(fits)}" if fits else ""
        print_item("", f"{start}{instead}. Nearest:")
        click.echo()
    if best.plan is None:
        gpus = f"{query.gpus} GPU{'s' if query.gpus > 1 else ''}"
        click.secho(f"{best.entry.name} {_verdict(best)} on {gpus}", bold=True)
    else:
        click.secho(best.entry.name, bold=True)
        print_wrapped(best.entry.description, indent=2)
    for reason in (*best.reasons, *_length(best)):
        print_item("  - ", reason)
    if best.plan is not None:
        click.echo(f"\nNext: {_next_command(best, query, sources)}")
    if others:
        click.echo()
        print_fitting(_COLUMNS, [_row(c) for c in others[:5]])


def _length(best: "Recommendation") -> list[str]:
    """The count that makes a run of years a month."""
    from megatron_operator.cli.run_length import DAY, LONG_DAYS, for_a_month, run_seconds

    seconds = run_seconds(best.plan) if best.plan is not None else None
    if best.plan is None or seconds is None or seconds <= LONG_DAYS * DAY:
        return []
    of_entry = best.entry.training
    in_iterations = of_entry.train_tokens is None and of_entry.train_samples is None
    return [for_a_month(best.plan, seconds, in_iterations=in_iterations)]


def _next_command(recommendation: "Recommendation", query: "Query", sources: str) -> str:
    """A command that succeeds: `init` where the run needs the folder of a model, which nobody has named."""
    entry, settings = recommendation.entry, _settings(recommendation, query)
    words = f"--gpus {query.gpus}" + (f" --accelerator {query.accelerator}" if query.accelerator else "")
    words += sources
    if not entry.starts and entry.planned_only is None:
        return f"megatron args --recipe {entry.name} {words}{settings}"
    if entry.engine == "bridge" and entry.starts and not settings:
        return f"megatron init {entry.name} {words} -o recipe.yaml"
    if entry.engine == "bridge" and entry.starts:
        kind = "megatron" if entry.reads_latents else "huggingFace"
        if entry.fine_tunes or not entry.reads_latents:
            settings += f" --set init.from.{kind}.path=/data/model --set data.volume.claimName=models"
    return f"megatron plan --recipe {entry.name} {words}{settings}"


def _settings(recommendation: "Recommendation", query: "Query") -> str:
    words, entry = "", recommendation.entry
    if query.seq_length is not None and query.seq_length != entry.training.seq_length:
        words += f" --set training.seqLength={query.seq_length}"
        if entry.engine == "megatron":
            words += f" --set model.maxPositionEmbeddings={query.seq_length}"
    if recommendation.batch is not None:
        words += f" --set training.globalBatchSize={recommendation.batch}"
    return words


def _row(recommendation: "Recommendation") -> tuple[str, ...]:
    from megatron_operator.planner.notes import beyond_memory

    p = recommendation.plan
    size = printing.format_count(recommendation.parameters) if recommendation.parameters else "-"
    if p is None:
        return (
            recommendation.entry.name,
            size,
            "-",
            "-",
            f"{_verdict(recommendation)}: {_cause(recommendation.reasons[0])}",
        )
    dims = ParallelDims.of_plan(p)
    layout = f"TP {dims.tp} PP {dims.pp} CP {dims.cp} EP {dims.ep} DP {dims.dp}"
    speed = f"{p.expected.tokens_per_second_per_gpu:,.0f}" if p.expected else "-"
    beyond = beyond_memory(p)
    why = recommendation.reasons[0] + (f"; may not fit: {beyond}" if beyond else "")
    return recommendation.entry.name, size, layout, speed, why


def _verdict(refused: "Recommendation") -> str:
    from megatron_operator.planner.notes import lacks_memory

    return "does not fit" if lacks_memory(refused.reasons) else "cannot run"


def _cause(refusal: str) -> str:
    """The message of a refusal (`field: message; fix`); field and fix belong to a recipe.

    Of memory only its last part: the layouts of models that do not fit differ, what they need decides.
    """
    message = refusal.partition(": ")[2].partition("; ")[0] or refusal
    _, needs, memory = message.rpartition(", needs ")
    return f"{needs.removeprefix(', ')}{memory}"


def _document(recommendation: "Recommendation", query: "Query", sources: str) -> dict[str, Any]:
    return {
        "name": recommendation.entry.name,
        "family": recommendation.entry.family,
        "engine": recommendation.entry.engine,
        "parameters": recommendation.parameters,
        "runs": recommendation.plan is not None,
        "runnable": recommendation.runnable,
        "published": recommendation.published,
        "reasons": list(recommendation.reasons),
        "plan": recommendation.plan.model_dump(by_alias=True, mode="json") if recommendation.plan else None,
        "next": _next_command(recommendation, query, sources) if recommendation.plan else None,
    }
