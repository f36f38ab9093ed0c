"""Generates docs/catalog from the catalog's data: one page per family, and a list of all recipes.

.venv/bin/python scripts/catalog_pages.py          # write
.venv/bin/python scripts/catalog_pages.py --check  # list stale pages, exit 1
"""

import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path

from megatron_operator import catalog
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.status import Plan
from megatron_operator.catalog import Entry, PublishedLayout
from megatron_operator.planner import plan
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.model_shape import model_shape
from megatron_operator.planner.estimate.parameters import parameters

DIRECTORY = Path(__file__).parents[1] / "docs" / "catalog"
MADE = "<!-- made by scripts/catalog_pages.py from operator/megatron_operator/catalog/data; do not edit -->"


def pages() -> dict[str, str]:
    """Every page by file name."""
    entries = sorted(catalog.load(), key=lambda entry: (entry.family, entry.engine == "bridge", _size(entry)))
    families = {name: list(group) for name, group in groupby(entries, key=lambda entry: entry.family)}
    made = {f"{name}.md": _family_page(name, group) for name, group in families.items()}
    return made | {"README.md": _list_page(families)}


def _anchor(heading: str) -> str:
    """The anchor that code hosting sites give to a heading: no punctuation but hyphens."""
    return heading.replace(".", "")


def _list_page(families: dict[str, list[Entry]]) -> str:
    rows = (
        (
            f"[{entry.name}]({name}.md#{_anchor(entry.name)})",
            entry.engine,
            ", ".join(entry.modes),
            _billions(_size(entry)) if _size(entry) else "",
            _counts(entry),
            entry.description,
        )
        for name, group in families.items()
        for entry in group
    )
    entries = [entry for group in families.values() for entry in group]
    of_bridge = [entry for entry in entries if entry.engine == "bridge"]
    return "\n".join(
        [
            MADE,
            "",
            "# Recipes",
            "",
            "`megatron recipes` lists them, `megatron recipes show NAME` prints one completely.",
            "Accelerators are those with a published layout; any other count is planned.",
            "",
            f"{len(entries) - len(of_bridge)} recipes use Megatron Core's own training loop (engine"
            f" `megatron`). {len(of_bridge)} require Megatron-Bridge (engine `bridge`): they are planned, and"
            " `megatron args` prints the command that starts them; the operator does not start that loop yet,"
            " and these commands are untested on hardware."
            f" A recipe is also found by the names of its Megatron-Bridge functions"
            f" ({len(catalog.load().functions())} in total).",
            "",
            *_table(("Recipe", "Engine", "Mode", "Parameters", "Accelerators", ""), rows),
            "",
        ]
    )


def _family_page(family: str, entries: list[Entry]) -> str:
    return "\n".join([MADE, "", f"# {family}", "", *(line for entry in entries for line in _section(entry))])


def _section(entry: Entry) -> Iterator[str]:
    yield from (
        f'<a id="{entry.name}"></a>',
        "",
        f"## {entry.name}",
        "",
        f"{entry.description}. Source: {entry.source}.",
        "",
    )
    if entry.aliases:
        yield from (f"Aliases: {', '.join(entry.aliases)}.", "")
    if entry.engine == "bridge":
        yield from _of_bridge(entry)
        return
    sizes = _plan(entry, None)
    size, active = _size(entry), sizes.active_parameters
    of_them = f", {_billions(active)} of them active" if active and active != size else ""
    yield f"{_billions(size)} parameters ({size:,}{of_them})."
    yield ""
    for title, section in (("Model", entry.model), ("Training", entry.training)):
        settings = ", ".join(f"`{name}: {_value(value)}`" for name, value in section.wire().items())
        yield from (f"{title}: {settings}", "")
    head = ("Accelerators", "TP", "PP", "VP", "CP", "EP", "DP", "Batch", "Recompute", "Source")
    if entry.layouts:
        yield from (*_table(head, (_row(entry, layout) for layout in entry.layouts)), "")
    else:
        yield from ("No published layout; every number of accelerators is planned.", "")
    if entry.functions:
        yield from ("Settings of its Megatron-Bridge functions, for a recipe that names one:", "")
        yield from (*_functions(entry.functions), "")
    yield from _corrections(entry)


def _of_bridge(entry: Entry) -> Iterator[str]:
    """A recipe of engine `bridge`: its functions are its layouts."""
    size = _size(entry)
    yield f"Mode {', '.join(entry.modes)}, run by Megatron-Bridge" + (
        f"; {_billions(size)} parameters ({size:,})." if size else "."
    )
    yield from ("", *_functions(entry.layouts), "")
    yield from _corrections(entry)


def _functions(layouts: Iterable[PublishedLayout]) -> list[str]:
    head = ("Function", "Accelerators", "Precision", "TP", "PP", "VP", "CP", "EP", "ETP", "SP")
    return _table((*head, "Batch", "Sequence", "lr", "Warm-up", "Steps"), map(_function, layouts))


def _function(layout: PublishedLayout) -> Iterator[str]:
    p, t = layout.parallelism, layout.training
    also = "".join(f"<br>`{name}`" for name in layout.also_named or ())
    yield f"`{layout.function}`{also}" + (" (benchmark)" if layout.benchmark else "")
    yield from (layout.title, layout.precision or "")
    for size in (
        p.tensor_model_parallel_size,
        p.pipeline_model_parallel_size,
        p.num_virtual_stages_per_pipeline_rank,
        p.context_parallel_size,
        p.expert_model_parallel_size,
        p.expert_tensor_parallel_size,
    ):
        yield str(size or "")
    yield "on" if p.sequence_parallel else ""
    yield f"{t.micro_batch_size} / {t.global_batch_size}"
    yield from (str(t.seq_length or ""), f"{t.lr:g}" if t.lr else "", str(t.lr_warmup_iters or ""))
    yield str(t.train_iters or "")


def _corrections(entry: Entry) -> Iterator[str]:
    if entry.corrections:
        yield from ("Differences from the source:", "")
        yield from (f"- {each.published} → {each.megatron}: {each.why}." for each in entry.corrections)
        yield ""


def _row(entry: Entry, layout: PublishedLayout) -> Iterator[str]:
    made = _plan(entry, layout)
    yield layout.title
    yield from (str(made.tensor_model_parallel_size), str(made.pipeline_model_parallel_size))
    yield str(made.virtual_pipeline_model_parallel_size or "")
    yield str(made.context_parallel_size)
    yield str(made.expert_model_parallel_size) if entry.model.num_experts else ""
    yield str(made.data_parallel_size)
    yield f"{made.micro_batch_size} / {made.global_batch_size}"
    yield layout.parallelism.recompute_granularity or ""
    yield layout.source


def _plan(entry: Entry, layout: PublishedLayout | None) -> Plan:
    """The plan of a layout, by default of the entry's first one, or of eight H100."""
    layout = layout or next(iter(entry.layouts), None)
    asked = (
        {"type": layout.accelerators[0], "count": layout.count}
        if layout
        else {"type": "h100-sxm", "count": 8}
    )
    spec = {"recipe": entry.name, "accelerator": asked, "data": {"mockData": True}}
    known: dict[str, dict[str, str]] = {name: {} for name in hardware.table()}
    platform = PlatformConfig.model_validate({"accelerators": known | {"cpu": {"platform": "cpu"}}})
    return plan(catalog.resolve(MegatronRecipeSpec.model_validate(spec), platform, catalog.load()))


@cache
def _parameters(name: str) -> int:
    entry = catalog.load().get(name)
    a = model_shape(entry.model, Diagnostics())
    return parameters(a, a.vocab) if a else 0


def _size(entry: Entry) -> int:
    """Number of parameters; 0 for a model whose shape is unknown."""
    return _parameters(entry.name)


def _counts(entry: Entry) -> str:
    return ", ".join(
        sorted({layout.title for layout in entry.layouts}, key=lambda title: (len(title), title))
    )


def _billions(count: int) -> str:
    return f"{count / 1e9:.3g}B" if count < 999.5e9 else f"{count / 1e12:.3g}T"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *(list(row) for row in rows)]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def main() -> int:
    made = pages()
    there = {path.name: path.read_text() for path in DIRECTORY.glob("*.md")}
    stale = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
    if sys.argv[1:] == ["--check"]:
        for name in stale:
            print(f"{DIRECTORY / name} is stale: run scripts/catalog_pages.py")
        return 1 if stale else 0
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name in stale:
        if name in made:
            (DIRECTORY / name).write_text(made[name])
        else:
            (DIRECTORY / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
