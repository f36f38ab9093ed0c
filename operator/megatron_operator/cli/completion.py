"""`megatron completion`: shell completion of commands, recipes and accelerators."""

from collections.abc import Iterator, Sequence

import click
from click.shell_completion import ShellComplete, get_completion_class

_NO_FILES, _FILES = ":4", ":0"
"""Cobra's directives, which kubectl reads after the proposals: whether the shell may propose files."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    kubectl completes `kubectl megatron` itself: it calls kubectl_complete-megatron.

    \b
    source <(megatron completion bash)
    """
    found = get_completion_class(shell)
    assert found is not None, "every choice has a completion class"
    click.echo(found(ctx.find_root().command, {}, "megatron", "_MEGATRON_COMPLETE").source())


def proposals(cli: click.Command, words: Sequence[str], incomplete: str) -> Iterator[str]:
    """Completions of `incomplete` after `words`, one per line, then the directive, as kubectl reads them."""
    found = ShellComplete(cli, {}, "megatron", "_MEGATRON_COMPLETE").get_completions(list(words), incomplete)
    for item in found:
        if item.type == "plain":
            yield f"{item.value}\t{item.help}" if item.help else str(item.value)
    yield _FILES if any(item.type in ("file", "dir") for item in found) else _NO_FILES
