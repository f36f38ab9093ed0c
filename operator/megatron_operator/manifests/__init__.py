"""Kubernetes objects of a plan: pure functions without I/O."""

from megatron_operator.manifests.build import Manifests, build
from megatron_operator.manifests.metadata import object_name

__all__ = ["Manifests", "build", "object_name"]
