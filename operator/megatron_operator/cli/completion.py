"""`megatron completion`: what a shell needs to complete commands, recipes and accelerators."""

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    source <(megatron completion bash)
    """
    found = get_completion_class(shell)
    assert found is not None, "every choice has a completion class"
    click.echo(found(ctx.find_root().command, {}, "megatron", "_MEGATRON_COMPLETE").source())
