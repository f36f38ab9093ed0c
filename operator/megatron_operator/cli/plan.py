"""`megatron plan`: the layout of a run, its memory and speed, and why it was chosen."""

from typing import TYPE_CHECKING, Any, Final

import click

from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.api.status import Expected, MemoryPerGpu, Plan
from megatron_operator.cli import printing, run_length
from megatron_operator.cli.conversion_jobs import conversion_lines
from megatron_operator.cli.inputs import Price, RecipeOptions, load_recipe, recipe_options, single_option
from megatron_operator.cli.tables import Column, output_width, print_fitting, print_item
from megatron_operator.planner.batch import full_steps

if TYPE_CHECKING:
    from megatron_operator.planner import Alternative, PlannedRun

_BAR = 40
"""Characters; with label and sizes at most 78."""
_PARTS = ("weights", "gradients", "optimizer", "activations", "other")
_COLORS = ("blue", "cyan", "green", "yellow", "magenta")


@click.command("plan")
@recipe_options
@single_option(
    "--price",
    type=Price(),
    metavar="PRICE",
    help="Price of an accelerator per hour, for the cost of the run; default the platform's.",
)
@printing.output_option
def command(options: RecipeOptions, price: float | None, output: str) -> None:
    """Show the layout of a run on its accelerators, its memory, its speed, and why it was chosen.

    Exits with 2 where the operator would refuse the recipe, after the plan if there is one.

    \b
    megatron plan --recipe llama3-8b --gpus 64 --accelerator h100-sxm
    megatron plan -f recipe.yaml --set parallelism.tensorModelParallelSize=4
    megatron plan --recipe llama3-70b --gpus 64 --accelerator h100-sxm -o json
    megatron plan --recipe llama3-8b --gpus 64 --accelerator h100-sxm --price 2.5
    """
    from megatron_operator.cli.planning import plan_with_alternatives, refusals
    from megatron_operator.cli.proposals import documents, proposals, show

    recipe = load_recipe(options)
    planned, alternatives = plan_with_alternatives(options, recipe)
    refused = refusals(planned)
    proposed = [] if refused else proposals(options, recipe, planned, alternatives)
    if price is None:
        price = planned.resolved.profile.price_per_gpu_hour
    if output != "table":
        verdict = {"runnable": not refused, "errors": printing.error_documents(refused)}
        verdict |= {"proposals": documents(proposed)}
        printing.print_data(document(planned.plan, alternatives, price) | verdict, output)
    else:
        _print(planned, alternatives, price)
        show(proposed)
        printing.print_errors(refused)
    if refused:
        raise click.exceptions.Exit(printing.EXIT_INVALID)


def _print(planned: "PlannedRun", alternatives: "list[Alternative]", price: float | None) -> None:
    p = planned.plan
    click.secho(f"{planned.name} on {p.world_size} x {planned.resolved.accelerator_type}", bold=True)
    for name, text in [*_whole_run(planned, price), *_lines(p), *conversion_lines(planned)]:
        print_item(f"  {name:<12}", text)
    if p.memory_per_gpu is not None:
        _memory(p.memory_per_gpu)
    for note in p.notes:
        print_item("  - ", note)
    if alternatives:
        click.echo()
        click.echo("Other layouts:")
        _table(p, alternatives)


def document(plan: Plan, alternatives: "list[Alternative]", price: float | None = None) -> dict[str, Any]:
    """The plan for programs: every field is present, null where it does not apply.

    `price` is that of an accelerator and hour. `cost` is that of the whole run, in the same currency; it is
    left out without a price.
    """
    others = [alternative.model_dump(by_alias=True, mode="json") for alternative in alternatives]
    found = plan.model_dump(by_alias=True, mode="json") | {"alternatives": others}
    found["runSeconds"] = run_length.run_seconds(plan)
    if price is not None:
        cost = run_length.cost(plan, price)
        found["cost"] = cost.total if cost else None
    return found


def _amount(value: float) -> str:
    """A sum or hours: as precise as its estimate, and not 0 of a short run."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _whole_run(planned: "PlannedRun", price: float | None) -> list[tuple[str, str]]:
    """Length and cost of the run, and what makes it long: the lines that come first."""
    p, lines = planned.plan, []
    # Iterations that follow from trainTokens have no origin.
    in_iterations = "training.trainIters" in planned.resolved.origins
    if length := run_length.length(p, in_iterations=in_iterations):
        lines.append(("whole run", length))
    if price is not None:
        cost = run_length.cost(p, price)
        text = "unknown: the speed or the number of iterations is"
        if cost:
            text = f"{_amount(cost.total)}: {_amount(cost.gpu_hours)} GPU hours at {price:g}"
        lines.append(("cost", text))
    if remark := run_length.batch_remark(p):
        lines.append(("batch", f"globalBatchSize {p.global_batch_size} is {remark}"))
    return lines


_COLUMNS = (
    *(Column(name) for name in ("TP", "PP", "VP", "CP", "EP")),
    Column("micro batch", optional=True),
    Column("recompute", optional=True),
    Column("memory"),
    Column("tokens/s/GPU"),
    Column("MFU", optional=True),
    Column("days", optional=True),
    Column("compared"),
)


def _table(p: Plan, alternatives: "list[Alternative]") -> None:
    compared: list[tuple[Plan | Alternative, str]] = [(p, "the plan")]
    compared += [(alternative, alternative.reason) for alternative in alternatives]
    rows = [
        (
            *_sizes(ParallelDims.of_plan(x)),
            str(x.micro_batch_size),
            x.recompute_granularity or "-",
            printing.format_bytes(x.memory_per_gpu.total) if x.memory_per_gpu else "-",
            *_speed(x.expected, p),
            reason,
        )
        for x, reason in compared
    ]
    print_fitting(_COLUMNS, rows)


def _sizes(dims: ParallelDims) -> tuple[str, ...]:
    """TP, PP, VP, CP and EP; no VP without interleaving."""
    virtual = str(dims.vp) if dims.vp > 1 else "-"
    return str(dims.tp), str(dims.pp), virtual, str(dims.cp), str(dims.ep)


def _speed(expected: Expected | None, p: Plan) -> tuple[str, str, str]:
    """Tokens per second and GPU, model FLOPs utilization, days for the whole run."""
    if expected is None:
        return "-", "-", "-"
    steps = full_steps(p)
    days = expected.step_seconds * steps / 86400 if steps else None
    return (
        f"{expected.tokens_per_second_per_gpu:,.0f}",
        f"{expected.mfu:.0%}",
        f"{days:,.1f}" if days is not None else "-",
    )


def _lines(p: Plan) -> list[tuple[str, str]]:
    dims = ParallelDims.of_plan(p)
    layout = f"TP {dims.tp} x PP {dims.pp} x CP {dims.cp} x DP {dims.dp}"
    if dims.vp > 1:
        layout += f", {dims.vp} virtual stages"
    if dims.ep > 1:
        layout += f"; EP {dims.ep} x ETP {dims.etp} x expert-DP {p.expert_data_parallel_size}"
    micro_batches = f"{p.gradient_accumulation} micro batch{'es' if p.gradient_accumulation > 1 else ''}"
    batch = f"{p.global_batch_size} = {p.micro_batch_size} x DP {dims.dp} x {micro_batches}"
    lines = [
        ("layout", layout),
        ("pods", f"{p.nodes} with {p.per_node} GPU{'s' if p.per_node > 1 else ''} each"),
        ("batch", batch),
    ]
    if p.parameters is not None:
        size = printing.format_count(p.parameters)
        if p.active_parameters is not None and p.active_parameters != p.parameters:
            size += f" ({printing.format_count(p.active_parameters)} active)"
        if p.flops_per_token is not None:
            size += f", {printing.format_count(p.flops_per_token)} FLOPs per token"
        lines.append(("parameters", size))
    if p.train_iters:
        lines.append(("length", f"{p.train_iters:,} iteration{'s' if p.train_iters > 1 else ''}"))
    if p.recompute_granularity:
        lines.append(("recompute", p.recompute_granularity))
    if p.expected is not None:
        e = p.expected
        lines.append(
            (
                "expected",
                f"{e.step_seconds:.2f} s per step, {e.tokens_per_second_per_gpu:,.0f} tokens/s{_interval(e)} "
                f"and {e.tflops_per_gpu:.0f} TFLOP/s per GPU ({e.mfu:.0%} MFU, {e.bubble:.0%} bubble)",
            )
        )
    return [*lines, *_groups(p)]


_LEVELS: Final = {"node": "node", "nvlink-domain": "NVLink domain"}


def _groups(p: Plan) -> list[tuple[str, str]]:
    """One line for each kind of group: what it spans, and the seconds of its communication in a step; one
    more for each level that it crosses."""
    lines = []
    for each in p.communication or ():
        level = _LEVELS.get(each.level, each.level)
        lines.append(
            f"{each.group} {each.size} ({level}): {each.seconds:.2f} s per step, "
            f"{each.exposed_seconds:.2f} s exposed ({each.exposed_share:.0%})"
        )
        lines += [
            f"   out of each {_LEVELS.get(crossing.level, crossing.level)}: "
            f"{printing.format_bytes(crossing.bytes)} per GPU, {crossing.seconds:.2f} s"
            for crossing in each.crossings or ()
        ]
    return [("groups" if number == 0 else "", line) for number, line in enumerate(lines)]


def _interval(e: Expected) -> str:
    """` (880 to 1,060)`; empty where a status of an older release has none."""
    low, high = e.tokens_per_second_per_gpu_low, e.tokens_per_second_per_gpu_high
    if low is None or high is None:
        return ""
    return f" ({float(f'{low:.3g}'):,.0f} to {float(f'{high:.3g}'):,.0f})"


def _memory(memory: MemoryPerGpu) -> None:
    """Print a bar of the accelerator's memory, with one color for each part."""
    whole = max(memory.capacity or 0, memory.total)
    bar, filled = "", 0
    summed = 0
    for part, color in zip(_PARTS, _COLORS, strict=True):
        summed += getattr(memory, part)
        upto = round(_BAR * summed / whole)
        bar += click.style("█" * (upto - filled), fg=color)
        filled = upto
    bar += "░" * (_BAR - filled)
    of = f" of {printing.format_bytes(memory.capacity)}" if memory.capacity else ""
    click.echo(f"  {'memory':<12}{bar} {printing.format_bytes(memory.total)}{of}")
    parts = [f"{part} {printing.format_bytes(getattr(memory, part))}" for part in _PARTS]
    width = output_width()
    lines: list[str] = []
    line = ""
    for part, color in zip(parts, _COLORS, strict=True):
        if line and width is not None and 14 + len(click.unstyle(line)) + len(part) + 3 > width:
            lines, line = [*lines, f"{line},"], ""
        line += (", " if line else "") + click.style(part, fg=color)
    for each in [*lines, line]:
        click.echo(f"  {'':<12}{each}")
