"""`megatron-convert`: weights of a Hugging Face model to a checkpoint of Megatron, and back.

    megatron-convert import --from HF_FOLDER --to CHECKPOINT_FOLDER [--hub NAME] [-- ARGUMENTS]
    megatron-convert export --from CHECKPOINT_FOLDER --to HF_FOLDER [--base HF_FOLDER] [--iteration N|best]
                     [-- ARGUMENTS]
    megatron-convert audit --from FOLDER --to FOLDER

One process, no GPU, no network but for `--hub`. The destination appears under its name only when it is
complete and its audit has passed; the audit is the file conversion-audit.json in it. ARGUMENTS are those of
a run of Megatron Core's own loop: the conversion is refused unless config.json describes the model that they
build.
"""

import argparse
import contextlib
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from megatron_contract.conversion import ConversionResult
from megatron_contract.environment import ENV_PROGRESS_PORT, ENV_SECRET_VARIABLES, ENV_TERMINATION_LOG
from megatron_contract.exit_codes import REASON_COMPLETED, ExitCode
from megatron_contract.limits import cut_to_json
from megatron_contract.termination import MAX_MESSAGE_BYTES, TerminationMessage

from megatron_trainer import secret_values
from megatron_trainer.read_errors import of_volume
from megatron_trainer.weights import hub
from megatron_trainer.weights.conversion_error import (
    AuditError,
    ConversionError,
    DestinationExistsError,
    DownloadError,
)

if TYPE_CHECKING:
    from megatron_trainer.weights.audit import Audit
    from megatron_trainer.weights.exported_checkpoint import ExportedCheckpoint
    from megatron_trainer.weights.meter import Meter

SEPARATOR = "--"
FAILED, REFUSED = 1, 2
"""Exit codes: the result differs from the source or an unexpected error; the input cannot be converted."""
_REASONS = {0: REASON_COMPLETED, FAILED: "ConversionFailed", REFUSED: "ConversionRefused"}
"""Exit code -> `reason` of the termination message, which is written where a pod names the file."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Convert and exit with 0, FAILED or REFUSED; with TERMINATED of the contract after SIGTERM."""
    own, model = _split(sys.argv[1:] if argv is None else argv)
    arguments = make_parser().parse_args(own)
    arguments.model = model
    # As an exception, so that the partial folder of a pod that is deleted is removed.
    signal.signal(signal.SIGTERM, terminate)
    try:
        if arguments.command == "import" and arguments.hub is not None:
            _download(arguments)
            _continue_offline(arguments)
        if arguments.command == "import" and arguments.revision is not None:
            raise ConversionError("--revision has no effect without --hub; leave it out")
        chosen = _choose(arguments)
        with _protected(arguments, chosen.iteration):
            audit = _run(arguments)
    except (ConversionError, DestinationExistsError) as error:
        if (volume := of_volume(error)) is not None:
            _end(FAILED, f"error: {arguments.source or arguments.to}: {volume}; the volume did not respond")
        _end(REFUSED, f"error: {error}")
    except AuditError as error:
        _end(FAILED, f"{error}; nothing was written to {arguments.to}")
    except DownloadError as error:
        _end(FAILED, f"error: {error}")
    except OSError as error:
        _end(FAILED, f"error: {error.strerror or error}: {error.filename or arguments.to}")
    if not audit.passed:
        _end(FAILED, audit.summary())
    revision = hub.commit(arguments.source) if arguments.command == "import" else None
    result = ConversionResult(len(audit.tensors), audit.bytes, chosen.iteration, chosen.loss, revision)
    at = "" if result.iteration is None else f" of iteration {result.iteration}"
    _end(0, f"{arguments.to}{at}: {audit.summary()}", result)


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The command's own arguments, and those of a run behind the separator."""
    words = list(argv)
    if SEPARATOR not in words:
        return words, []
    at = words.index(SEPARATOR)
    return words[:at], words[at + 1 :]


def terminate(_signal: int, _frame: object) -> NoReturn:
    """Handle SIGTERM: end, with the code of the contract."""
    sys.exit(int(ExitCode.TERMINATED))


def _download(arguments: argparse.Namespace) -> None:
    """Have the model of a hub in --from. Raises ConversionError, DownloadError."""
    # Files that are complete stay for the next try; threads would delay an exception.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(int(ExitCode.TERMINATED)))
    model = hub.HubModel.of_environment(arguments.hub, arguments.revision)
    hub.download(model, arguments.source, _meter(arguments).follow)


def _continue_offline(arguments: argparse.Namespace) -> NoReturn:
    """Replace this process by one that converts the folder: without the token, and without a hub."""
    words = ["import", "--from", str(arguments.source), "--to", str(arguments.to)]
    words += ["--reuse"] if arguments.reuse else []
    if arguments.progress_port is not None:
        words += ["--progress-port", str(arguments.progress_port)]
    words += [SEPARATOR, *arguments.model] if arguments.model else []
    left_out = (hub.TOKEN, ENV_SECRET_VARIABLES)
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment["HF_HUB_OFFLINE"] = "1"
    command = [sys.executable, "-P", "-m", "megatron_trainer.weights.command", *words]
    os.execve(sys.executable, command, environment)


def _end(code: int, text: str, result: ConversionResult | None = None) -> NoReturn:
    text = secret_values.scrub(text)
    print(f"megatron-convert: {text}", file=sys.stderr if code else sys.stdout, flush=True)
    if path := os.environ.get(ENV_TERMINATION_LOG):
        _write_termination(Path(path), code, text, result)
    sys.exit(code)


def _write_termination(path: Path, code: int, text: str, result: ConversionResult | None) -> None:
    """Write the termination message. If that fails, the exit code stays the same."""
    reason = _REASONS.get(code, "")
    message = TerminationMessage(reason, cut_to_json(text, MAX_MESSAGE_BYTES), code)
    with contextlib.suppress(OSError):
        path.write_text(message.dumps(**(result.to_json() if result else {})), encoding="utf-8")


def _run(arguments: argparse.Namespace) -> "Audit":
    _check_paths(arguments)
    if None in map(find_spec, ("megatron.bridge", "modelopt")):
        raise ConversionError(
            "this image lacks Megatron-Bridge or what it imports; install requirements-bridge-run.txt and "
            "requirements-bridge.txt of trainer-image"
        )
    from megatron_trainer.weights import cpu_model

    with _without_messages_of_libraries():
        cpu_model.import_bridge()
        from megatron_trainer.weights import conversion

        if arguments.model:
            _check_model(arguments)
        meter = _meter(arguments)
        try:
            if arguments.command == "import":
                return conversion.import_weights(arguments.source, arguments.to, meter)
            if arguments.command == "export":
                return conversion.export_weights(arguments.source, arguments.to, arguments.base, meter)
        except DestinationExistsError:
            # Also where another process finished the same conversion first.
            if not arguments.reuse:
                raise
            _require_a_model(arguments)
        base = arguments.base if arguments.command != "import" else None
        audit = conversion.audit(arguments.source, arguments.to, base, meter)
        if arguments.command != "audit" and not audit.passed:
            raise ConversionError(
                f"--to {arguments.to} exists and holds other weights than {arguments.source}: "
                f"{audit.summary()}; name a folder that does not exist, or remove this one"
            )
        if arguments.command != "audit":
            _require_the_same_files(arguments)
        return audit


@contextlib.contextmanager
def _without_messages_of_libraries() -> Iterator[None]:
    """Without warnings, and the tracebacks that Bridge logs for packages which it can do without.

    Standard output, on which the result is printed, has nothing of them.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _require_a_model(arguments: argparse.Namespace) -> None:
    """Refuse a destination that exists and is no result of such a conversion."""
    from megatron_trainer.weights import huggingface_folder

    target: Path = arguments.to
    names = sorted(each.name for each in target.iterdir())[:3] if target.is_dir() else []
    if arguments.command == "export" and names and not huggingface_folder.is_folder(target):
        raise ConversionError(
            f"--to {target} exists and is no Hugging Face model: it has {', '.join(names)} and no "
            f"{huggingface_folder.CONFIG}; name a folder that does not exist"
        )


def _require_the_same_files(arguments: argparse.Namespace) -> None:
    """Refuse a destination with the same weights and another config.json, of an export another tokenizer."""
    from megatron_trainer.weights import checkpoint, companion_files, huggingface_folder

    base, written = (
        (arguments.source, checkpoint.kept_source(arguments.to))
        if arguments.command == "import"
        else (arguments.base or checkpoint.kept_source(arguments.source), arguments.to)
    )
    if base is None or written is None:
        return
    names = companion_files.differing(base, written)
    if arguments.command == "import":
        # Recipes read the tokenizer in the model's folder, where a template may be added later.
        names = [name for name in names if name == huggingface_folder.CONFIG]
    if names:
        raise ConversionError(
            f"--to {arguments.to} exists with the same weights, and not with {', '.join(names[:5])} "
            f"of {base}; name a folder that does not exist, or remove this one"
        )


def _meter(arguments: argparse.Namespace) -> "Meter":
    """The meter of the conversion, served where a port is given."""
    from megatron_trainer.weights.meter import Meter

    meter = Meter()
    if arguments.progress_port is not None and (problem := meter.serve(arguments.progress_port)):
        print(f"megatron-convert: {problem}", file=sys.stderr, flush=True)
    return meter


def _check_model(arguments: argparse.Namespace) -> None:
    """Refuse a config.json that does not describe the model of the run."""
    from megatron_trainer.weights import checkpoint, huggingface_folder, model_check

    if arguments.command == "import":
        folder = arguments.source
    else:
        folder = arguments.base or checkpoint.kept_source(arguments.source)
    if folder is not None:
        model_check.require_same_model(
            huggingface_folder.read(folder, "--from", weights=False), arguments.model
        )


def _choose(arguments: argparse.Namespace) -> "ExportedCheckpoint":
    """For an export, set --from to the checkpoint; returns what is known of it."""
    from megatron_trainer.weights import exported_checkpoint

    if arguments.command != "export" or not arguments.source.is_dir():
        return exported_checkpoint.ExportedCheckpoint(arguments.source, None, None)
    chosen = exported_checkpoint.find(arguments.source, arguments.iteration)
    arguments.source = chosen.folder
    if arguments.link is not None and chosen.newest:
        arguments.reuse |= exported_checkpoint.link(arguments.to, arguments.link)
    return chosen


def _protected(arguments: argparse.Namespace, iteration: int | None) -> AbstractContextManager[None]:
    """Keep a run that goes on from deleting the checkpoint that is exported."""
    if iteration is None:
        return contextlib.nullcontext()
    from megatron_trainer.checkpoints import selection

    path = selection.directory(arguments.source, iteration)
    return selection.read_locked(path if path.is_dir() else arguments.source)


def _check_paths(arguments: argparse.Namespace) -> None:
    """Refuse what needs no model, before the seconds that Megatron's import takes."""
    from megatron_trainer.weights import config_check, cpu_model, destination, huggingface_folder

    if arguments.command == "export" and arguments.parents:
        arguments.to.parent.mkdir(parents=True, exist_ok=True)
    if arguments.command != "audit" and not (arguments.reuse and arguments.to.exists()):
        destination.check(arguments.to)
    if arguments.command == "import":
        folder = huggingface_folder.read(arguments.source, "--from", weights=True)
        cpu_model.require_support(folder.architecture)
        config_check.require_all_taken(folder)
    elif not arguments.source.is_dir():
        raise ConversionError(f"--from {arguments.source} is not a folder; mount it there")
    if arguments.command != "import" and arguments.base is not None:
        folder = huggingface_folder.read(arguments.base, "--base", weights=False)
        cpu_model.require_support(folder.architecture)
        config_check.require_all_taken(folder)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="megatron-convert",
        description="Convert weights between Hugging Face and Megatron, on CPUs, and audit every tensor.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    texts = {
        "import": ("Hugging Face folder -> checkpoint", "Hugging Face folder", "checkpoint, not there yet"),
        "export": ("checkpoint -> Hugging Face folder", "checkpoint", "Hugging Face folder, not there yet"),
        "audit": ("compare what a conversion read with what it wrote", "its --from", "its --to"),
    }
    for name, (summary, source, target) in texts.items():
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        command.add_argument("--from", dest="source", type=Path, required=True, metavar="FOLDER", help=source)
        command.add_argument("--to", type=Path, required=True, metavar="FOLDER", help=target)
        command.add_argument(
            "--progress-port",
            type=int,
            metavar="PORT",
            default=os.environ.get(ENV_PROGRESS_PORT) or None,
            help=f"serve /progress there (default: {ENV_PROGRESS_PORT}, else it is not served)",
        )
        if name != "audit":
            command.add_argument(
                "--reuse",
                action="store_true",
                help="audit a destination that exists instead of refusing it, and keep it if it is equal",
            )
        if name == "import":
            command.add_argument(
                "--hub",
                metavar="NAME",
                help="download this model of a Hugging Face hub to --from first, unless it is there "
                "(HF_ENDPOINT: a mirror; HF_TOKEN: for gated models)",
            )
            command.add_argument(
                "--revision", metavar="REVISION", help="branch, tag or commit for --hub (default: main)"
            )
        if name == "export":
            command.add_argument("--parents", action="store_true", help="create missing parents of --to")
            command.add_argument(
                "--iteration",
                metavar="N|best",
                help="checkpoint of the run to export (default: the newest); best: the complete one with the "
                "lowest validation loss",
            )
            command.add_argument(
                "--link",
                type=Path,
                metavar="FOLDER",
                help="export of the newest checkpoint that exists already: --to becomes a link to it if the "
                "checkpoint is the same",
            )
        if name != "import":
            command.add_argument(
                "--base",
                type=Path,
                metavar="FOLDER",
                help="Hugging Face folder with configuration and tokenizer (default: those that an import "
                "keeps with the checkpoint), and with the weights that an adapter belongs to",
            )
    return parser


if __name__ == "__main__":
    main()
