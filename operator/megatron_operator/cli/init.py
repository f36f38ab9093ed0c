"""`megatron init`: a commented recipe to start from."""

import shlex
from pathlib import Path

import click

from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.cli import printing
from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.inputs import (
    CATALOG_DIRECTORY,
    Count,
    ModeChoice,
    complete_accelerator,
    complete_recipe,
    single_option,
    source_words,
)


@click.command("init")
@click.argument("model", required=False, shell_complete=complete_recipe)
@single_option("--gpus", type=Count(1, 1_000_000), metavar="N", help="Number of accelerators.")
@single_option("--accelerator", metavar="TYPE", shell_complete=complete_accelerator, help="Accelerator type.")
@single_option("--mode", type=ModeChoice(), help="Purpose.")
@single_option("--platform", type=click.Path(path_type=Path), help="Platform file of the cluster.")
@single_option("--catalog", type=CATALOG_DIRECTORY, help="Directory with additional recipes.")
@single_option(
    "-o",
    "--output",
    "file",
    type=click.Path(path_type=Path, allow_dash=True),
    help="File to write; default standard output.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def command(
    model: str | None,
    gpus: int | None,
    accelerator: str | None,
    mode: str | None,
    platform: Path | None,
    catalog: Path | None,
    file: Path | None,
    force: bool,
) -> None:
    """Write a commented recipe that the operator admits.

    MODEL is a recipe of the catalog. Without --gpus the smallest published count is
    taken, or else the smallest that fits. Without MODEL, or
    with a name that `megatron recommend` knows, the recommended recipe for --gpus is taken.

    \b
    megatron init llama3-8b -o recipe.yaml
    megatron init llama3-70b --gpus 64 --accelerator h100-sxm -o recipe.yaml
    megatron init --gpus 8
    """
    from megatron_operator.cli.planning import load_catalog, load_platform
    from megatron_operator.cli.starter import Request, starter

    try:
        request = Request(model, gpus, accelerator, mode)
        text = starter(request, load_platform(platform), load_catalog(catalog))
        if file is None or str(file) == "-":
            click.echo(text, nl=False)
            return
        _write(file, text, force)
    except (InvalidRecipeError, CommandError) as error:
        printing.exit_with_errors(error.errors, "table")
    following = ["megatron", "plan", "-f", str(file), *source_words(platform, catalog)]
    click.echo(f"wrote {file}; next: {shlex.join(following)}", err=True)


def _write(file: Path, text: str, force: bool) -> None:
    """Write the file; never over another without `force`. Raises CommandError."""
    try:
        with file.open("w" if force else "x") as opened:
            opened.write(text)
    except FileExistsError:
        if file.is_dir():
            raise CommandError(f"--output {file}", "is a directory", "name a file in it") from None
        raise CommandError(
            f"--output {file}", "exists already", "choose another name, or replace it with --force"
        ) from None
    except OSError as problem:
        reason = (problem.strerror or "cannot be written").lower()
        raise CommandError(f"--output {file}", reason, "name a file in a writable directory") from None
