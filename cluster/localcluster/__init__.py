"""A real two-node Kubernetes on one Linux machine, without Docker."""

from localcluster.cluster import Cluster
from localcluster.errors import ClusterError, MissingRequirementsError

__all__ = ["Cluster", "ClusterError", "MissingRequirementsError"]
