"""Selects the platform's accelerator for a recipe, and checks what the platform allows its namespace."""

import difflib
from collections.abc import Iterable

from megatron_operator.api.errors import FieldError, shown
from megatron_operator.api.hardware import canonical, without_cuda
from megatron_operator.api.platform import AcceleratorProfile, PlatformConfig
from megatron_operator.api.recipe import AcceleratorSpec
from megatron_operator.catalog.discovery import PRODUCTS

_PRODUCTS = {product.lower(): hardware for product, hardware in PRODUCTS.items()}


def select_accelerator(
    asked: AcceleratorSpec, platform: PlatformConfig
) -> tuple[str, AcceleratorProfile] | FieldError:
    """Name and profile of the requested accelerator; without a type the platform's default or only one.

    A type is the name of a profile, or of the hardware that one profile (or the default one) has: the
    planner's name, another usual one, or the product of GPU feature discovery. Returns the error where the
    platform has no such accelerator.
    """
    profiles = platform.accelerators
    available = ", ".join(sorted(profiles))
    name = asked.type
    if name is None:
        name = platform.default_accelerator or (next(iter(profiles)) if len(profiles) == 1 else None)
    if not profiles:
        fix = "ask the platform's administrator to add profiles to the platform file"
        return FieldError("spec.accelerator.type", "the platform has no accelerators", fix)
    if name is None:
        return FieldError(
            "spec.accelerator.type",
            f"is not set and the platform has no default (it has: {available})",
            "name one",
        )
    if name not in profiles:
        lower = _PRODUCTS.get(name.lower(), name.lower().removeprefix("nvidia-"))
        same = [each for each, profile in profiles.items() if profile.known_as(each) == canonical(lower)]
        if platform.default_accelerator in same:
            same = [platform.default_accelerator]
        if len(same) > 1 and not {lower, canonical(lower)} & profiles.keys():
            return FieldError(
                "spec.accelerator.type",
                f"{shown(name)} is the hardware of several accelerators of the platform",
                f"use one of: {', '.join(sorted(same))}",
            )
        name = next((each for each in (lower, canonical(lower), *same) if each in profiles), name)
    if name not in profiles:
        if asked.type and (reason := without_cuda(name)):
            return FieldError("spec.accelerator.type", f"{shown(name)} {reason}", f"use one of: {available}")
        source = "" if asked.type is not None else " (the platform's default)"
        return FieldError(
            "spec.accelerator.type",
            f"the platform has no accelerator {shown(name)}{source}",
            f"{_near(name, profiles)}use one of: {available}",
        )
    return name, profiles[name]


def _near(name: str, profiles: Iterable[str]) -> str:
    """The question whether a profile of a similar name is meant; empty without one."""
    lower = name.lower().removeprefix("nvidia-")
    near = [each for each in profiles if each.startswith(f"{lower}-")]
    near = near or difflib.get_close_matches(lower, profiles, n=2, cutoff=0.7)
    return f"did you mean {' or '.join(near)}? " if near else ""


def limit_errors(
    asked: AcceleratorSpec, name: str, platform: PlatformConfig, namespace: str | None
) -> list[FieldError]:
    """Violations of the platform's limits for this namespace; none without a namespace."""
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
                f"use one of: {allowed}, or ask the platform's administrator",
            )
        )
    if limit.max_accelerators is not None and asked.count > limit.max_accelerators:
        errors.append(
            FieldError(
                "spec.accelerator.count",
                f"{asked.count} exceeds the limit of {limit.max_accelerators} for namespace {namespace}",
                f"set at most {limit.max_accelerators}, or ask the platform's administrator",
            )
        )
    return errors


def service_account_errors(name: str | None, platform: PlatformConfig) -> list[FieldError]:
    """The error of a service account that the platform does not allow; none without one."""
    allowed = platform.service_accounts
    if name is None or name in allowed:
        return []
    instead = f"use one of: {', '.join(sorted(allowed))}" if allowed else "leave it out"
    return [
        FieldError(
            "spec.serviceAccountName",
            f"the platform does not allow {shown(name)}",
            f"{instead}, or ask the platform's administrator to add it to serviceAccounts",
        )
    ]


def queue_errors(queue: str | None, platform: PlatformConfig) -> list[FieldError]:
    """The error of a Kueue queue where the platform schedules gangs without Kueue; none without one.

    Kueue holds the job back by quota and then expects its pods to start; a gang that another scheduler holds
    back would keep the quota without running.
    """
    gangs = platform.gang_scheduling
    if queue is None or gangs is None:
        return []
    return [
        FieldError(
            "spec.scheduling.queue",
            f"{shown(queue)} is a queue of Kueue, but the platform's gangScheduling leaves gangs to "
            f"{gangs.scheduler}",
            "leave it out, or ask the platform's administrator",
        )
    ]
