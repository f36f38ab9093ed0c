"""From a plan to the Kubernetes objects that express it: pure functions, no cluster."""

from megatron_operator.manifests.build import Manifests, build
from megatron_operator.manifests.metadata import object_name

__all__ = ["Manifests", "build", "object_name"]
