"""Options of commands that take a recipe: a file or a catalog name, overrides, a platform, a catalog."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import click
from click.shell_completion import CompletionItem

from megatron_operator.api.labels import API_VERSION, KIND
from megatron_operator.cli.errors import CommandError


@dataclass(frozen=True, slots=True)
class RecipeOptions:
    """The recipe, overrides and platform of a command line. Exactly one of `file` and `recipe` is set."""

    file: Path | None
    recipe: str | None
    gpus: int | None
    accelerator: str | None
    overrides: tuple[str, ...]
    platform: Path | None
    catalog: Path | None


def single_option(*names: str, **attributes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option with one value; click by itself would take the last of several."""

    def only(ctx: click.Context, param: click.Parameter, values: tuple[Any, ...]) -> Any:
        if len(values) > 1:
            raise click.BadParameter(f"is given {len(values)} times; give it once", ctx, param)
        if not values and attributes.get("required"):
            raise click.MissingParameter(ctx=ctx, param=param)
        return values[0] if values else None

    return click.option(*names, multiple=True, callback=only, **attributes)


class Count(click.IntRange):
    """A whole number within limits, refused in the words in which a field of a recipe is."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. Raises BadParameter."""
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not an integer; write a whole number without a unit", param, ctx)
        if self.min is not None and number < self.min:
            self.fail(f"{number} is below {self.min}; set at least {self.min:.0f}", param, ctx)
        if self.max is not None and number > self.max:
            self.fail(f"{number} is above {self.max}; set at most {self.max:.0f}", param, ctx)
        return number


class ModeChoice(click.Choice[str]):
    """A mode of recipes, also by the names that Megatron-Bridge and other trainers have for it."""

    OTHERS: ClassVar = {"peft": "lora", "finetune": "sft", "fine-tune": "sft", "pretraining": "pretrain"}

    def __init__(self) -> None:
        super().__init__(["pretrain", "sft", "lora"])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The mode; another name that is understood is reported on standard error. Raises BadParameter."""
        if mode := self.OTHERS.get(str(value).lower()):
            click.echo(f"--mode {value}: called {mode} here", err=True)
        return super().convert(mode or value, param, ctx)


class Price(click.FloatRange):
    """A price per accelerator and hour, in any currency."""

    def __init__(self) -> None:
        super().__init__(0, 1_000_000)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The price. Raises BadParameter."""
        try:
            price = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number; set for example 2.5, without a currency", param, ctx)
        if not 0 <= price <= 1_000_000:
            self.fail(f"{price:g} is not between 0 and 1000000; set for example 2.5", param, ctx)
        return price


CATALOG_DIRECTORY = click.Path(path_type=Path, exists=True, file_okay=False)


def recipe_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of RecipeOptions to a command, and pass them to it as `options`."""

    def wrapped(
        file: Path | None,
        recipe: str | None,
        gpus: int | None,
        accelerator: str | None,
        overrides: tuple[str, ...],
        platform: Path | None,
        catalog: Path | None,
        **rest: Any,
    ) -> Any:
        if (file is None) == (recipe is None):
            raise click.UsageError("give either -f FILE or --recipe NAME")
        options = RecipeOptions(file, recipe, gpus, accelerator, overrides, platform, catalog)
        return command(options=options, **rest)

    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    wrapped.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    path = click.Path(path_type=Path, allow_dash=True)
    for decorate in reversed(
        (
            single_option("-f", "--file", type=path, help="Recipe file; - is standard input."),
            single_option(
                "--recipe", metavar="NAME", shell_complete=complete_recipe, help="A recipe of the catalog."
            ),
            single_option("--gpus", type=Count(min=1), metavar="N", help="Number of accelerators."),
            single_option(
                "--accelerator",
                metavar="TYPE",
                shell_complete=complete_accelerator,
                help="Accelerator type.",
            ),
            click.option(
                "--set",
                "overrides",
                multiple=True,
                metavar="PATH=VALUE",
                help="Set a field below spec, for example training.globalBatchSize=512; repeatable.",
            ),
            single_option("--platform", type=path, help="Platform file of the cluster."),
            single_option("--catalog", type=CATALOG_DIRECTORY, help="Directory with additional recipes."),
        )
    ):
        wrapped = decorate(wrapped)
    return wrapped


def load_recipes(options: RecipeOptions) -> list[dict[str, Any]]:
    """The MegatronRecipe objects of the options, with overrides applied. Raises CommandError."""
    from megatron_operator.cli import documents

    if options.file is not None:
        found = documents.read_recipes(options.file)
    else:
        found = [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "metadata": {"name": object_name(str(options.recipe))},
                "spec": {"recipe": options.recipe, "accelerator": {}, "data": {"mockData": True}},
            }
        ]
    for resource in found:
        _apply_overrides(options, resource)
    asked = found[0]["spec"]["accelerator"] if options.recipe is not None else None
    if isinstance(asked, dict) and "count" not in asked:
        raise CommandError("--gpus", "is required with --recipe", "give the number of accelerators")
    return found


def source_words(platform: Path | None, catalog: Path | None) -> list[str]:
    """The options of a further command that reads the same platform and catalog."""
    sources = (("--platform", platform), ("--catalog", catalog))
    return [word for option, path in sources if path is not None for word in (option, str(path))]


def object_name(recipe: str) -> str:
    """Name of the object for a catalog entry or function: `qwen3_8b_config` becomes `qwen3-8b-config`."""
    return re.sub(r"[^a-z0-9.]+", "-", recipe.lower()).strip("-.") or "recipe"


def load_recipe(options: RecipeOptions) -> dict[str, Any]:
    """The only MegatronRecipe object of the options. Raises CommandError if the file has several."""
    found = load_recipes(options)
    if len(found) > 1:
        fix = "give a file with one, or use validate"
        raise CommandError(str(options.file), f"has {len(found)} recipes", fix)
    return found[0]


def _apply_overrides(options: RecipeOptions, resource: dict[str, Any]) -> None:
    from megatron_operator.cli import documents

    if options.gpus is not None:
        set_field(resource, "accelerator.count", options.gpus)
    if options.accelerator is not None:
        set_field(resource, "accelerator.type", options.accelerator)
    for override in options.overrides:
        path, equals, text = override.partition("=")
        if not equals or not path or not text:
            raise click.UsageError(
                f"invalid --set {override}; use PATH=VALUE, for example training.globalBatchSize=512"
            )
        set_field(resource, path.removeprefix("spec."), documents.parse_value(path, text))


def set_field(resource: dict[str, Any], path: str, value: Any) -> None:
    """Set a field below `spec` of a MegatronRecipe object; `name[N]` is an item of a list, or the next one.

    Raises CommandError.
    """
    steps = _steps(path)
    target: Any = resource
    if _names_data(steps) and isinstance(data := resource.get("spec", {}).get("data"), dict):
        data.pop("mockData", None)
    for step, following in zip(["spec", *steps], [*steps, None], strict=True):
        if isinstance(step, int):
            if not isinstance(target, list):
                raise CommandError(f"spec.{path}", "has an index for what is not a list", "leave it out")
            if step > len(target):
                fix = f"set item {len(target)} first"
                raise CommandError(f"spec.{path}", f"its list has {len(target)} items", fix)
            target += [None] if step == len(target) else []
        elif not isinstance(target, dict):
            raise CommandError(f"spec.{path}", "its parent is not an object", "set a field of an object")
        if following is None:
            target[step] = value
            return
        below = target[step] if isinstance(step, int) else target.get(step)
        if below is None:
            target[step] = below = [] if isinstance(following, int) else {}
        target = below


def _steps(path: str) -> list[str | int]:
    """Names and indices: `data.blend[0].path` becomes data, blend, 0, path; flags may have dots."""
    names = path.split(".", 1) if path.startswith("megatronArgs.") else path.split(".")
    found: list[str | int] = []
    for name in names:
        plain, *indices = re.split(r"\[(\d+)\]", name)
        found += [plain, *map(int, indices[::2])]
        if any(indices[1::2]) or not plain or "[" in plain:
            fix = "write for example data.blend[0].path=/data/corpus"
            raise CommandError(f"spec.{path}", f"{name!r} is not a field", fix)
    return found


def _names_data(path: list[str | int]) -> bool:
    """Whether a field is a data source, or a part of one, beside which no random tokens are read."""
    return path[0] == "data" and path[1:2] in [
        [each] for each in ("blend", "datasetRoot", "prepare", "sources")
    ]


def complete_recipe(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the catalog that start with `incomplete`."""
    from megatron_operator import catalog

    return [CompletionItem(name) for name in catalog.load().names() if name.startswith(incomplete)]


def complete_family(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Families of the catalog's recipes that start with `incomplete`."""
    from megatron_operator import catalog

    entries = catalog.load()
    families = sorted({entries.get(name).family for name in entries.names()})
    return [CompletionItem(family) for family in families if family.startswith(incomplete)]


def complete_accelerator(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Accelerators of the default platform that start with `incomplete`."""
    from megatron_operator.cli.default_platform import default_platform

    return [CompletionItem(name) for name in default_platform().accelerators if name.startswith(incomplete)]
