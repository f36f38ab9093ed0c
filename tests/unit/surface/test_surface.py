"""Public surfaces, one file each. A change shows as a diff of that file; `make golden` writes it.

Removing or renaming a line breaks users: record it in CHANGELOG.md.
"""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import megatron_operator
import yaml
from megatron_contract.exit_codes import REASONS, ExitCode
from megatron_operator import sdk
from megatron_operator.cli.main import cli
from megatron_operator.controller.deleted_run_metrics import DELETED_RUNS
from megatron_operator.controller.main import main as operator_command
from megatron_operator.controller.run_metrics import RUNS
from megatron_trainer.telemetry.server import GAUGES
from prometheus_client import REGISTRY

ROOT = Path(__file__).parents[3]


def command_lines(command: click.Command, path: str) -> Iterator[str]:
    """A command and its parameters, then its subcommands."""
    yield path
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            flags = ", ".join([*parameter.opts, *parameter.secondary_opts])
            value = "" if parameter.is_flag else f" {value_type(parameter)}"
            repeated = " ..." if parameter.multiple and parameter.callback is None else ""
            yield f"{path}  {flags}{value}{repeated}{' (required)' if parameter.required else ''}"
        else:
            yield f"{path}  <{parameter.name}>{' ...' if parameter.nargs == -1 else ''}"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in sorted(command.list_commands(context)):
            found = command.get_command(context, name)
            assert found is not None
            yield from command_lines(found, f"{path} {name}")


def value_type(parameter: click.Parameter) -> str:
    """The type of a value, or its choices."""
    if isinstance(parameter.type, click.Choice):
        return f"[{'|'.join(map(str, parameter.type.choices))}]"
    return parameter.type.name


def test_commands_and_flags(lock: Any) -> None:
    lines = [*command_lines(cli, "megatron"), *command_lines(operator_command, "megatron-operator")]
    lock("cli.txt", lines)


def field_lines(path: str, schema: dict[str, Any]) -> Iterator[str]:
    """One line per field of an OpenAPI schema: path, type, choices."""
    duration = schema.get("x-kubernetes-int-or-string")
    kind = schema.get("type", "duration" if duration else "any")
    if "enum" in schema:
        kind += f" [{', '.join(map(str, schema['enum']))}]"
    yield f"{path}: {kind}"
    for name, inner in schema.get("properties", {}).items():
        yield from field_lines(f"{path}.{name}", inner)
    for suffix, key in (("[]", "items"), ("{}", "additionalProperties")):
        if isinstance(schema.get(key), dict):
            yield from field_lines(path + suffix, schema[key])


def test_crd_fields(lock: Any) -> None:
    crd = yaml.safe_load((ROOT / "crds" / "megatronrecipes.yaml").read_text())
    lines = []
    for version in crd["spec"]["versions"]:
        schema = version["schema"]["openAPIV3Schema"]["properties"]
        for part in ("spec", "status"):
            lines += [f"{version['name']} {line}" for line in field_lines(part, schema[part])]
    lock("crd_fields.txt", lines)


def test_environment_variables(lock: Any, string_constants: frozenset[str]) -> None:
    """Variables of this project and of the training-operator that any program of ours reads or sets."""
    pattern = re.compile(r"(MEGATRON|PET)_[A-Z_]+|POD_NAME(SPACE)?")
    names = {text for text in string_constants if pattern.fullmatch(text)}
    prefix = operator_command.context_settings["auto_envvar_prefix"]
    names.discard(prefix)
    names |= {f"{prefix}_{option.name.upper()}" for option in operator_command.params if option.name}
    lock("environment.txt", sorted(names))


def test_labels_and_annotations(lock: Any, string_constants: frozenset[str]) -> None:
    """Keys that the operator reads or writes on any object, its API group included."""
    names = set()
    for module in pkgutil.walk_packages(megatron_operator.__path__, "megatron_operator."):
        found = vars(importlib.import_module(module.name))
        names |= {
            value for key, value in found.items() if re.match(r"(LABEL|ANNOTATION)_", key) and "/" in value
        }
    key = re.compile(r"([a-z0-9-]+\.)+[a-z]+/(?!v\d)[A-Za-z0-9._-]+")
    names |= {text for text in string_constants if key.fullmatch(text)}
    lock("labels.txt", sorted(names))


def metadata_keys(value: Any) -> Iterator[str]:
    """Keys of all labels and annotations in an object, those of its pod templates included."""
    if isinstance(value, dict):
        for part in ("labels", "annotations"):
            yield from (value.get("metadata") or {}).get(part) or {}
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from metadata_keys(each)


def test_labels_of_rendered_objects_are_locked() -> None:
    locked = set((Path(__file__).parent / "labels.txt").read_text().split())
    objects = [
        item
        for path in (ROOT / "tests" / "golden" / "manifests").glob("*.yaml")
        for item in yaml.safe_load_all(path.read_text())
    ]
    used = {key for key in metadata_keys(objects) if key.startswith("megatron.training/")}
    assert used, "the golden manifests carry labels of this project"
    assert used <= locked


def test_metrics(lock: Any) -> None:
    """The operator's metrics with their labels, then those of a trainer pod."""
    for module in pkgutil.iter_modules(importlib.import_module("megatron_operator.controller").__path__):
        importlib.import_module(f"megatron_operator.controller.{module.name}")
    own = [
        each for each in REGISTRY._collector_to_names if getattr(each, "_name", "").startswith("megatron_")
    ]
    lines = [f"operator {metric._name}{{{','.join(metric._labelnames)}}} {metric._type}" for metric in own]
    for family in (*RUNS.describe(), *DELETED_RUNS.describe()):
        lines.append(f"operator {family.name}{{{','.join(family._labelnames)}}} {family.type}")
    trainer = {f"megatron_{name}" for name, _ in GAUGES.values()}
    trainer |= {"megatron_checkpoint_timestamp_seconds", "megatron_phase_info", "megatron_rank_slowdown"}
    lines += [f"trainer {name}" for name in trainer]
    lock("metrics.txt", sorted(lines))


def test_exit_codes(lock: Any) -> None:
    lock("exit_codes.txt", [f"{int(code)} {code.name} {REASONS[code]}" for code in sorted(ExitCode)])


def test_the_sdk(lock: Any) -> None:
    """Names of megatron_operator.sdk with their public members and parameters."""
    assert sdk.__all__ == sorted(sdk.__all__)
    lock("sdk.txt", [line for name in sdk.__all__ for line in member_lines(name, getattr(sdk, name))])


def member_lines(name: str, kind: type) -> Iterator[str]:
    """A class with its parameters, then its fields, properties and methods; of an error its bases."""
    is_error = issubclass(kind, Exception)
    listed = [base.__name__ for base in kind.__bases__] if is_error else parameters(kind)
    yield f"{name}({', '.join(listed)})"
    fields = getattr(kind, "__dataclass_fields__", {})
    for member in sorted({*vars(kind), *fields}):
        if member.startswith("_"):
            continue
        value = inspect.getattr_static(kind, member, None)
        called = value.__func__ if isinstance(value, classmethod) else value
        arguments = f"({', '.join(parameters(called)[1:])})" if inspect.isfunction(called) else ""
        yield f"{name}.{member}{arguments}"


def parameters(called: Any) -> list[str]:
    """Names of parameters, in the order in which they are given."""
    return [
        str(each.replace(annotation=each.empty)) for each in inspect.signature(called).parameters.values()
    ]
