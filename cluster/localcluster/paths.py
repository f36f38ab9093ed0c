"""The paths of the cluster: `.cluster` in the checkout holds all state and all caches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import ClusterError

CHECKOUT = Path(__file__).resolve().parents[2]
"""The repository's root; this package is always installed in editable mode from a checkout."""

PROFILES = ("full", "control-plane")


@dataclass(frozen=True)
class Paths:
    """The paths of one profile."""

    profile: str
    checkout: Path = CHECKOUT

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise ClusterError(f"profile {self.profile!r} is unknown; one of: {', '.join(PROFILES)}")

    @property
    def root(self) -> Path:
        """All state and caches of the checkout."""
        return self.checkout / ".cluster"

    @property
    def home(self) -> Path:
        """All state of this profile, which `down` deletes."""
        return self.root / self.profile

    @property
    def bin(self) -> Path:
        """Programs that were built for the cluster."""
        return self.root / "bin"

    @property
    def cache(self) -> Path:
        """Downloads and root file systems, which only save time."""
        return self.root / "cache"

    @property
    def tools(self) -> Path:
        """Go modules that pin the programs to build."""
        return self.checkout / "cluster" / "tools"

    @property
    def pki(self) -> Path:
        """Keys and certificates of this profile."""
        return self.home / "pki"

    @property
    def logs(self) -> Path:
        """Logs of the processes of this profile."""
        return self.home / "logs"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.home / "kubeconfig"

    @property
    def audit_policy(self) -> Path:
        """Where it exists when the API server starts, that writes `audit_log` by this policy."""
        return self.home / "audit-policy.json"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log, JSON lines."""
        return self.logs / "audit.jsonl"

    def binary(self, name: str) -> Path:
        """Path of one of the built programs."""
        return self.bin / name
