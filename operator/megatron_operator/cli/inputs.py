"""What every command takes: a recipe file or a catalog name with a count, overrides, a platform."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.labels import API_VERSION, KIND


@dataclass(frozen=True, slots=True)
class Question:
    """The recipe and platform that a command line asks about."""

    file: Path | None
    recipe: str | None
    gpus: int | None
    accelerator: str | None
    overrides: tuple[str, ...]
    platform: Path | None
    catalog: Path | None


def question(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that make a Question, and hand it to the command as `asked`."""

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
        asked = Question(file, recipe, gpus, accelerator, overrides, platform, catalog)
        return command(asked=asked, **rest)

    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    wrapped.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    path = click.Path(path_type=Path, allow_dash=True)
    for decorate in reversed(
        (
            click.option("-f", "--file", type=path, help="Recipe file; - is standard input."),
            click.option(
                "--recipe", metavar="NAME", shell_complete=complete_recipe, help="A recipe of the catalog."
            ),
            click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="Accelerators of the run."),
            click.option(
                "--accelerator",
                metavar="TYPE",
                shell_complete=complete_accelerator,
                help="Kind of accelerator.",
            ),
            click.option(
                "--set",
                "overrides",
                multiple=True,
                metavar="PATH=VALUE",
                help="Set a field below spec, as in training.globalBatchSize=512; may be repeated.",
            ),
            click.option("--platform", type=path, help="Platform file of the cluster."),
            click.option("--catalog", type=path, help="Directory with recipes of your own."),
        )
    ):
        wrapped = decorate(wrapped)
    return wrapped


def resources(asked: Question) -> list[dict[str, Any]]:
    """The MegatronRecipe objects asked about, overrides applied. Raises InvalidRecipeError."""
    from megatron_operator.cli import documents

    if asked.file is not None:
        found = documents.recipes(asked.file)
    else:
        found = [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "metadata": {"name": asked.recipe},
                "spec": {"recipe": asked.recipe, "accelerator": {}, "data": {"mockData": True}},
            }
        ]
    for resource in found:
        _apply(asked, resource)
    return found


def resource(asked: Question) -> dict[str, Any]:
    """The one object asked about. Raises InvalidRecipeError when the file has several."""
    found = resources(asked)
    if len(found) > 1:
        raise InvalidRecipeError(
            [
                FieldError(
                    str(asked.file), f"has {len(found)} recipes", "give a file with one, or use validate"
                )
            ]
        )
    return found[0]


def _apply(asked: Question, resource: dict[str, Any]) -> None:
    from megatron_operator.cli import documents

    if asked.gpus is not None:
        _put(resource, "accelerator.count", asked.gpus)
    if asked.accelerator is not None:
        _put(resource, "accelerator.type", asked.accelerator)
    for override in asked.overrides:
        path, equals, text = override.partition("=")
        if not equals or not path:
            raise click.UsageError(f"--set {override}: write PATH=VALUE, as in training.globalBatchSize=512")
        _put(resource, path.removeprefix("spec."), documents.value(text))


def _put(resource: dict[str, Any], path: str, value: Any) -> None:
    target = resource.setdefault("spec", {})
    *parents, leaf = path.split(".", 1) if path.startswith("megatronArgs.") else path.split(".")
    for parent in parents:
        if not isinstance(target, dict):
            break
        target = target.setdefault(parent, {})
    if not isinstance(target, dict):
        raise InvalidRecipeError(
            [FieldError(f"spec.{path}", "lies below a value", "set a field of a section")]
        )
    if parents == ["data"] and leaf in ("blend", "prepare"):
        target.pop("mockData", None)
    target[leaf] = value


def complete_recipe(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the catalog that begin so."""
    from megatron_operator import catalog

    return [CompletionItem(name) for name in catalog.load().names() if name.startswith(incomplete)]


def complete_accelerator(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Accelerators of the generic platform that begin so."""
    from megatron_operator.cli import generic

    return [CompletionItem(name) for name in generic.platform().accelerators if name.startswith(incomplete)]
