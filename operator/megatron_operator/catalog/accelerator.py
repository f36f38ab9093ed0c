"""Which of the platform's accelerators a recipe gets, and whether its namespace may have it."""

from megatron_operator.api.errors import FieldError
from megatron_operator.api.hardware import canonical
from megatron_operator.api.platform import AcceleratorProfile, PlatformConfig
from megatron_operator.api.recipe import AcceleratorSpec


def select_accelerator(
    asked: AcceleratorSpec, platform: PlatformConfig
) -> tuple[str, AcceleratorProfile] | FieldError:
    """Name and profile of the accelerator asked for; without a type the default or the only one."""
    profiles = platform.accelerators
    there = ", ".join(sorted(profiles)) or "none"
    name = (
        asked.type or platform.default_accelerator or (next(iter(profiles)) if len(profiles) == 1 else None)
    )
    if name is None:
        return FieldError(
            "spec.accelerator.type",
            f"is not set and the platform has no default (it has: {there})",
            "name one",
        )
    if name not in profiles and canonical(name) in profiles:
        name = canonical(name)
    if name not in profiles:
        said = "" if asked.type else " (the platform's default)"
        return FieldError(
            "spec.accelerator.type",
            f"the platform has no accelerator {name!r}{said}",
            f"use one that it has: {there}"
            if profiles
            else "have its owner add profiles to the platform file",
        )
    return name, profiles[name]


def limit_errors(
    asked: AcceleratorSpec, name: str, platform: PlatformConfig, namespace: str | None
) -> list[FieldError]:
    """What the platform's limits for this namespace forbid; without a namespace nothing."""
    if namespace is None:
        return []
    limit = platform.namespaces.get(namespace, platform.namespaces.get("*"))
    if limit is None:
        return []
    errors = []
    if limit.accelerator_types is not None and name not in limit.accelerator_types:
        allowed = ", ".join(limit.accelerator_types) or "none"
        errors.append(
            FieldError(
                "spec.accelerator.type",
                f"namespace {namespace} may not use {name}",
                f"use one of: {allowed}, or ask the platform's owner",
            )
        )
    if limit.max_accelerators is not None and asked.count > limit.max_accelerators:
        errors.append(
            FieldError(
                "spec.accelerator.count",
                f"{asked.count} are more than the {limit.max_accelerators} that namespace {namespace}"
                " may use",
                f"ask for {limit.max_accelerators} or fewer, or ask the platform's owner",
            )
        )
    return errors
