"""The cluster's programs, built from the Go modules pinned in `cluster/tools`.

A program is rebuilt when its module's files, its build flags or the Go version changed, so a stale or deleted
cache only costs time.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from localcluster.commands import run
from localcluster.console import Console
from localcluster.errors import ClusterError
from localcluster.lock import exclusive
from localcluster.paths import Paths

KUBERNETES = "v1.36.3"
"""Also in tools/kubernetes/go.mod; a test holds both equal."""


STATIC = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
"""Without cgo a program needs no other file, so its container image holds nothing else."""


@dataclass(frozen=True)
class Patch:
    """A correction of one file of a Go module, for a defect that its pinned version has."""

    module: str
    """Path of the Go module, such as `sigs.k8s.io/kwok`."""
    file: str
    old: str
    """Text that occurs once in the file."""
    new: str


@dataclass(frozen=True)
class Program:
    """A Go program: `package` built in the module `tools/<module>`."""

    name: str
    module: str
    package: str
    ldflags: str = "-s -w"
    patch: Patch | None = None


# A node that is created again while its name is still queued would be queued twice. Then the older entry is
# never removed, and once it is due it blocks the queue: KWOK renews no lease of any node any more.
KWOK_QUEUE = Patch(
    module="sigs.k8s.io/kwok",
    file="pkg/utils/heap/heap.go",
    old="\tentry := &waitEntry[K, T]{key: key, data: data}\n",
    new="\th.Remove(data)\n\tentry := &waitEntry[K, T]{key: key, data: data}\n",
)


def _kubernetes(name: str) -> Program:
    version = "k8s.io/component-base/version"
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    flags = (
        f"-s -w -X {version}.gitVersion={KUBERNETES} -X {version}.gitMajor={major} "
        f"-X {version}.gitMinor={minor} -X {version}.gitTreeState=clean"
    )
    return Program(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", flags)


PROGRAMS: dict[str, Program] = {
    program.name: program
    for program in (
        _kubernetes("kube-apiserver"),
        _kubernetes("kube-controller-manager"),
        _kubernetes("kube-scheduler"),
        _kubernetes("kubectl"),
        Program("etcd", "kubernetes", "./etcd"),
        Program("pause", "kubernetes", "./pause"),
        Program("simulated-gpu", "kubernetes", "./simulated-gpu"),
        Program(
            "training-operator",
            "training-operator",
            "github.com/kubeflow/training-operator/cmd/training-operator.v1",
        ),
        Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", patch=KWOK_QUEUE),
        Program("scheduler-plugins", "scheduler-plugins", "."),
        Program("jobset", "jobset", "sigs.k8s.io/jobset"),
        Program(
            "kubeflow-trainer",
            "kubeflow-trainer",
            "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
        ),
        Program("kueue", "kueue", "sigs.k8s.io/kueue/cmd/kueue"),
        Program("network-policies", "kube-router", "."),
        _kubernetes("kubelet"),
        _kubernetes("kube-proxy"),
        Program("coredns", "coredns", "."),
        Program("registry", "registry", "."),
        Program(
            "local-path-provisioner",
            "local-path-provisioner",
            "github.com/rancher/local-path-provisioner",
        ),
        Program("helm", "helm", "helm.sh/helm/v3/cmd/helm"),
        Program("kubeconform", "kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform"),
        Program("versitygw", "versitygw", "github.com/versity/versitygw/cmd/versitygw"),
    )
}

CONTROL_PLANE = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "etcd",
    "training-operator",
    "kwok",
    "scheduler-plugins",
)
ON_DEMAND = ("jobset", "kubeflow-trainer", "kueue")
"""Of no profile: built when a test starts them."""
FULL = tuple(name for name in PROGRAMS if name not in ("kwok", "scheduler-plugins", *ON_DEMAND))
BY_PROFILE = {"control-plane": CONTROL_PLANE, "full": FULL}


def go() -> str:
    """Path of the go command. Raises ClusterError when it is missing."""
    found = shutil.which("go")
    if found is None:
        raise ClusterError("the go command is missing: install Go 1.26 or later and put it on PATH")
    return found


def go_version() -> str:
    """For example `go1.26.8`. Raises ClusterError when go is missing."""
    return run([go(), "env", "GOVERSION"]).strip()


def fingerprint(program: Program, tools: Path, toolchain: str) -> str:
    """Hash of everything that determines the binary: pinned modules, own source, build flags, toolchain."""
    digest = hashlib.sha256(repr((program, STATIC, toolchain)).encode())
    module = tools / program.module
    sources = sorted((module / program.package).glob("*.go")) if program.package.startswith(".") else []
    for path in (module / "go.mod", module / "go.sum", *sources):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def patched_text(patch: Patch, text: str) -> str:
    """The file's text with the patch. Raises ClusterError where the text to replace does not occur once."""
    if text.count(patch.old) != 1:
        raise ClusterError(
            f"the patch of {patch.module}/{patch.file} does not apply to the pinned version; correct it in "
            "cluster/localcluster/binaries.py, or remove it if that version no longer has the defect"
        )
    return text.replace(patch.old, patch.new)


class Binaries:
    """Builds programs into `.cluster/bin`."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths

    def _stamp(self, name: str) -> Path:
        return self.paths.bin / f".{name}.fingerprint"

    def stale(self, names: Sequence[str]) -> list[str]:
        """Those of `names` that are not built, or built from other inputs."""
        toolchain = go_version()
        result = []
        for name in names:
            stamp = self._stamp(name)
            expected = fingerprint(PROGRAMS[name], self.paths.tools, toolchain)
            if not (self.paths.binary(name).exists() and stamp.exists() and stamp.read_text() == expected):
                result.append(name)
        return result

    def build(self, names: Sequence[str], console: Console) -> None:
        """Build what is stale among `names`. Raises ClusterError with the compiler's output."""
        if not self.stale(names):
            return
        with exclusive(self.paths.bin / ".lock", "the build", console):
            # Another command may have built them while this one waited for the lock.
            self._build(self.stale(names), console)

    def _build(self, stale: Sequence[str], console: Console) -> None:
        toolchain = go_version()
        for name in console.parts("build", stale):
            program = PROGRAMS[name]
            partial = self.paths.bin / f".{name}.partial"
            with self._corrected(program) as flags:
                command = [go(), "build", "-trimpath", *flags, "-ldflags", program.ldflags]
                run(
                    [*command, "-o", partial, program.package],
                    directory=self.paths.tools / program.module,
                    environment=STATIC,
                )
            # The file of a running program can be replaced, but not written to.
            partial.rename(self.paths.binary(name))
            self._stamp(name).write_text(fingerprint(program, self.paths.tools, toolchain))

    @contextmanager
    def _corrected(self, program: Program) -> Iterator[list[str | Path]]:
        """Flags of `go build` for a copy of the module with the program's patch.

        Files of Go's module cache can be replaced neither there nor by -overlay.
        """
        if (patch := program.patch) is None:
            yield []
            return
        pins = self.paths.tools / program.module
        with tempfile.TemporaryDirectory(prefix="patched-") as folder:
            copy, modfile = Path(folder, "module"), Path(folder, "go.mod")
            shutil.copytree(
                self.module_directory(program.module, patch.module), copy, copy_function=shutil.copyfile
            )
            file = copy / patch.file
            file.write_text(patched_text(patch, file.read_text()))
            modfile.write_text((pins / "go.mod").read_text() + f"\nreplace {patch.module} => {copy}\n")
            shutil.copyfile(pins / "go.sum", modfile.with_suffix(".sum"))
            yield [f"-modfile={modfile}"]

    def module_directory(self, module: str, path: str) -> Path:
        """The source folder of Go module `path` as pinned in `tools/<module>`; it contains manifests.

        Raises ClusterError without Go, or when the module cannot be downloaded.
        """
        output = run([go(), "mod", "download", "-json", path], directory=self.paths.tools / module)
        return Path(json.loads(output)["Dir"])
