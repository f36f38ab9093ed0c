"""What each kind of training job needs of a cluster, and how to install it."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from megatron_operator.api.platform import KUBERNETES, PlatformConfig

PYTORCHJOBS = "pytorchjobs.kubeflow.org"
JOBSETS = "jobsets.jobset.x-k8s.io"
TRAINJOBS = "trainjobs.trainer.kubeflow.org"


@dataclass(frozen=True, slots=True)
class Need:
    """A resource and its controller."""

    kind: str
    crd: str
    """Name of its CustomResourceDefinition."""
    controllers: tuple[str, ...]
    """Names of the Deployment, or of its image, in its ways of installation."""
    fix: str
    """How to install both."""


_PYTORCHJOB = Need(
    "PyTorchJob",
    PYTORCHJOBS,
    ("training-operator",),
    'kubectl apply --server-side -k "https://github.com/kubeflow/training-operator.git/manifests/overlays/standalone'
    '?ref=v1.9.4"',
)
_JOBSET = Need(
    "JobSet",
    JOBSETS,
    ("jobset-controller-manager", "jobset-controller", "jobset"),
    "kubectl apply --server-side -f "
    "https://github.com/kubernetes-sigs/jobset/releases/download/v0.10.1/manifests.yaml",
)
_TRAINJOB = Need(
    "TrainJob",
    TRAINJOBS,
    ("trainer-controller-manager",),
    'kubectl apply --server-side -k "https://github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.0.0"',
)
NEEDS: Final = {
    "pytorchjob": (_PYTORCHJOB,),
    "jobset": (_JOBSET,),
    "trainjob": (_TRAINJOB, _JOBSET),
}
"""By the names that `platform.jobBackend` has."""


def available(chosen: str, crds: Collection[str]) -> str | None:
    """A `jobBackend` other than the chosen one whose resources are all among `crds`; None without one."""
    return next(
        (name for name, needs in NEEDS.items() if name != chosen and all(each.crd in crds for each in needs)),
        None,
    )


def chosen_backend(platform: PlatformConfig | None, crds: Collection[str]) -> str:
    """The platform's `jobBackend`; where it names none, what the chart chooses in a cluster with `crds`."""
    if platform is not None and "job_backend" in platform.model_fields_set:
        return platform.job_backend
    gangs = None if platform is None else platform.gang_scheduling
    only_jobsets = JOBSETS in crds and PYTORCHJOBS not in crds
    return "jobset" if only_jobsets and (gangs is None or gangs.scheduler == KUBERNETES) else "pytorchjob"
