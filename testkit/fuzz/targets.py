"""What is fuzzed: for each target its texts, and a check that raises when an answer is wrong."""

import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st
from megatron_contract.environment import JOURNAL_FILE, LEASE_FILE, PROGRESS_FILE, VALIDATION_FILE
from megatron_contract.progress import ProgressReport
from megatron_contract.wire import WireError, load_json
from megatron_operator import catalog, manifests
from megatron_operator.api import yaml_documents
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.schema import structural
from megatron_operator.api.status import ConversionStatus, MegatronRecipeStatus
from megatron_operator.api.validation import parse_recipe
from megatron_operator.catalog import Catalog
from megatron_operator.catalog.discovery import with_nodes
from megatron_operator.catalog.entry import Entry
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.controller.config_source import parse_platform
from megatron_operator.lifecycle.conversions import set_converted
from megatron_operator.lifecycle.pod_termination import pod_end
from megatron_operator.lifecycle.progress_reading import ProgressReading, merge_reports
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.stages import CONVERSIONS, set_stage_failed
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.status_update import update_status
from megatron_operator.planner import admit

from testkit.fuzz import page, samples
from testkit.fuzz.strategies import changed, json_texts, leaves, yaml_texts

ROOT: Final = Path(__file__).parents[2]
NOW: Final = 1_800_000_000.0
LONGEST_MESSAGE: Final = 4000
"""Characters of all errors of one answer that may come from one field."""

_FIELD: Final = re.compile(r"(spec|metadata|apiVersion|kind|platform\.yaml|own\.yaml)\b", re.ASCII)
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f]")


class WrongAnswer(AssertionError):
    """An answer breaks a promise: an error without field, a control character in a manifest."""


@dataclass(frozen=True, slots=True)
class Target:
    """Texts and the check that they go through; `check` raises for a finding."""

    texts: Callable[[], st.SearchStrategy[str]]
    check: Callable[[str], None]


def check_recipe(text: str) -> None:
    """A recipe file through the way of operator and CLI: parse, resolve, plan, manifests.

    Raises WrongAnswer.
    """
    try:
        documents = yaml_documents.load_all(text)
    except yaml_documents.YamlError as error:
        _require(str(error).startswith("invalid YAML") and len(str(error)) < 500, f"message: {error}")
        return
    for document in documents:
        if isinstance(document, dict):
            _plan(document, default_platform(), catalog.load())


def check_platform(text: str) -> None:
    """A platform file as its ConfigMap has it, and a recipe planned on it."""
    try:
        platform = with_nodes(parse_platform(text, "ConfigMap a/b"), samples.NODE_LABELS)
    except InvalidRecipeError as refused:
        check_errors(refused)
        return
    for recipe in samples.RECIPES:
        _plan(recipe, platform, catalog.load())


def check_catalog(text: str) -> None:
    """A file of the user's catalog, every entry of it, and a recipe that names the first."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "own.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
        found = catalog.load(Path(folder))
    own = sorted(set(found.names()) - set(catalog.load().names()))
    if found.problems:
        check_errors(InvalidRecipeError(found.problems))
    for name in own[:3]:
        try:
            found.get(name)
        except InvalidRecipeError as refused:
            check_errors(refused)
        else:
            _plan(samples.recipe_of(name), default_platform(), found)


def check_progress(text: str) -> None:
    """An answer of /progress, merged, and taken over into the status.

    Raises WrongAnswer.
    """
    try:
        report = ProgressReport.parse(load_json(text.encode(errors="surrogatepass")))
    except WireError as error:
        _require(len(str(error)) < 500, f"message of {len(str(error))} characters")
        return
    merged = merge_reports({0: report, 1: report})
    _follow(samples.body({}), ProgressReading(merged, NOW), "")


def check_termination(text: str) -> None:
    """A container's termination message, as the cause of the end of its pod.

    Raises WrongAnswer.
    """
    for code in (0, 1, 137):
        pod = samples.ended_pod(code, text)
        end = pod_end(pod, "run")
        _require(end is None or len(end.cause) < 2000, "a long cause")
        _follow(samples.body({}), None, text, code)


def check_conversion(text: str) -> None:
    """The termination message of an import's or export's pod, as its result and as the cause of its end."""
    for stage in CONVERSIONS:
        wanted = ConversionStatus(source="/data/a", path="/data/b", audit="/data/b/audit.json")
        done, failed = (StatusBuilder.of(samples.body({}), NOW) for _ in range(2))
        set_converted(done, stage, wanted, [samples.ended_pod(0, text, stage.container)])
        set_stage_failed(failed, stage, samples.FAILED_JOB, [samples.ended_pod(2, text, stage.container)])
        for builder in (done, failed):
            _check_status(builder)


def check_status(text: str) -> None:
    """A recipe with this status: read, followed with a report, and written again."""
    try:
        status = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(status, dict):
        report = ProgressReport.parse(samples.PROGRESS)
        _follow(samples.body(status), ProgressReading(report, NOW), "")


def check_journal(text: str) -> None:
    """Damaged state of the trainer on its volume: journal, lease, tracker, progress, metadata.

    Raises WrongAnswer.
    """
    from megatron_trainer.checkpoints import checkpoint_lease, selection
    from megatron_trainer.health.retry_policy import plan_restart
    from megatron_trainer.telemetry.run_journal import RunJournal

    with tempfile.TemporaryDirectory() as folder:
        save = Path(folder)
        checkpoint = selection.directory(save, 10)
        checkpoint.mkdir()
        lines, evaluations = (_lines(text, name) for name in ("records", "evaluations"))
        for path, content in (
            (save / JOURNAL_FILE, text),
            (save / LEASE_FILE, text),
            (save / selection.TRACKER, text),
            (checkpoint / "metadata.json", text),
            (save / PROGRESS_FILE, f"{lines}\n{text}\n"),
            (save / VALIDATION_FILE, f"{evaluations}\n{text}\n"),
        ):
            path.write_text(content, encoding="utf-8", errors="surrogatepass")
        checkpoint_lease.read_holder(save)
        _require(selection.choose(save).iteration is None, "a checkpoint without shards is chosen")
        journal = RunJournal(save, lambda _line: None)
        plan_restart(journal.policy, journal.pending, [10], 100, "skip")
        journal.start_generation(journal.generation + 1, journal.pending, 10, None, NOW)
        json.dumps(journal.summary().to_json())


def check_page(text: str) -> None:
    """A run's status and log on the web page.

    Raises WrongAnswer.
    """
    found = page.problem(text)
    _require(found is None, str(found))


def _lines(text: str, name: str) -> str:
    """The items of a list of the journal as lines of a file of their own."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    found = value.get(name) if isinstance(value, dict) else None
    return "\n".join(json.dumps(each) for each in found) if isinstance(found, list) else ""


def _follow(body: dict[str, Any], reading: ProgressReading | None, message: str, code: int = 137) -> None:
    builder = StatusBuilder.of(body, NOW)
    pods = (samples.running_pod(), samples.ended_pod(code, message)) if message else samples.running_pods()
    update_status(builder, RunSnapshot(NOW, samples.JOB, pods, reading=reading))
    _check_status(builder)


def _check_status(builder: StatusBuilder) -> None:
    written = json.dumps(builder.patch())
    json.dumps(written, allow_nan=False)
    _require(len(written) < 1 << 20, f"a status of {len(written)} bytes")
    builder.changed()


def _plan(resource: dict[str, Any], platform: PlatformConfig, library: Catalog) -> None:
    """Admit one recipe and build its objects; every error must be one of the product."""
    try:
        spec = parse_recipe(resource)
        name = str((resource.get("metadata") or {}).get("name") or "recipe")
        run = admit(name, spec, platform, library, "default")
        built = manifests.build(run, "uid")
    except InvalidRecipeError as refused:
        check_errors(refused)
        return
    _check_words(run.arguments)
    for manifest in built.all():
        json.dumps(manifest, allow_nan=False).encode()


def _check_words(words: list[str]) -> None:
    for word in words:
        _require(not _UNPRINTABLE.search(word), f"control character in argument {word[:80]!r}")
        word.encode()


def check_errors(refused: InvalidRecipeError) -> None:
    """Every error has a field, a message and a fix, in a printable line.

    Raises WrongAnswer.
    """
    for error in refused.errors:
        text = str(error)
        known = _FIELD.match(error.field) or error.message == "unknown field beside spec"
        _require(bool(known), f"field {error.field[:80]!r} of: {text[:300]}")
        _require(bool(error.message) and bool(error.fix), f"no message or fix: {text[:300]}")
        _require(len(text) < LONGEST_MESSAGE, f"an error of {len(text)} characters: {text[:300]}")
        _require(not _UNPRINTABLE.search(text), f"control character in: {text[:300]!r}")
        text.encode()


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise WrongAnswer(problem)


@cache
def _recipe_texts() -> st.SearchStrategy[str]:
    schema = {"properties": {"metadata": {"properties": {"name": {"type": "string"}}}}}
    spec = structural(MegatronRecipeSpec)
    fields = [*leaves({"properties": {"spec": spec}}), *leaves(schema)]
    return yaml_texts(changed(samples.recipe_seeds(ROOT), fields))


@cache
def _platform_texts() -> st.SearchStrategy[str]:
    return yaml_texts(changed(samples.platform_seeds(), list(leaves(structural(PlatformConfig)))))


@cache
def _catalog_texts() -> st.SearchStrategy[str]:
    entry = {"properties": {"entries": {"properties": {"mine": structural(Entry)}}}}
    return yaml_texts(changed(samples.CATALOGS, list(leaves(entry))))


@cache
def _status_texts() -> st.SearchStrategy[str]:
    return json_texts(changed(samples.STATUSES, list(leaves(structural(MegatronRecipeStatus)))))


@cache
def _page_texts() -> st.SearchStrategy[str]:
    steps = {"steps": samples.typed(page.SEED["steps"]), "lines": samples.typed(page.SEED["lines"])}
    fields = leaves({"properties": {"status": structural(MegatronRecipeStatus)} | steps})
    return json_texts(changed([page.SEED], list(fields)))


TARGETS: Final = {
    "recipe": Target(_recipe_texts, check_recipe),
    "platform": Target(_platform_texts, check_platform),
    "catalog": Target(_catalog_texts, check_catalog),
    "progress": Target(
        lambda: json_texts(changed([samples.PROGRESS], list(leaves(samples.PROGRESS_SCHEMA)))), check_progress
    ),
    "termination": Target(
        lambda: json_texts(changed([samples.TERMINATION], list(leaves(samples.TERMINATION_SCHEMA)))),
        check_termination,
    ),
    "conversion": Target(
        lambda: json_texts(changed([samples.CONVERSION], list(leaves(samples.CONVERSION_SCHEMA)))),
        check_conversion,
    ),
    "status": Target(_status_texts, check_status),
    "page": Target(_page_texts, check_page),
    "journal": Target(
        lambda: json_texts(changed([samples.JOURNAL], list(leaves(samples.JOURNAL_SCHEMA)))), check_journal
    ),
}
