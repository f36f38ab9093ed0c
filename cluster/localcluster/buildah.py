"""buildah with its storage in `.cluster`, each command in a mount namespace of its own."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from localcluster.addresses import HOST, REGISTRY_PORT
from localcluster.commands import run
from localcluster.errors import ClusterError
from localcluster.paths import Paths

CERTIFICATES = Path("/etc/ssl/certs")


class Buildah:
    """Builds images and pushes them to the cluster's registry. Methods raise ClusterError."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths

    @property
    def _command(self) -> list[str | Path]:
        storage = ("--root", self.paths.cache / "buildah", "--runroot", self.paths.cache / "buildah-run")
        return ["buildah", "--storage-driver", "overlay", *storage]

    def _run(self, *args: str | Path, environment: Mapping[str, str] | None = None) -> str:
        # All mounts are in this namespace, so a build that is killed leaves none behind.
        unshare = ("unshare", "--mount", "--propagation", "slave")
        return run([*unshare, *self._command, *args], environment=environment)

    def run_in_root(self, name: str, script: str) -> str:
        """Standard output of a bash script with the image's root file system, writable, in `$root`.

        The script runs in mount and network namespaces of its own, as root. What it writes is discarded.
        """
        buildah = shlex.join(map(str, self._command))
        text = f"""set -euo pipefail
container=$({buildah} from --pull-never {shlex.quote(name)})
trap '{buildah} rm "$container" > /dev/null' EXIT
root=$({buildah} mount "$container")
{script}"""
        return run(["unshare", "--mount", "--net", "--propagation", "slave", "bash", "-c", text])

    def image_id(self, name: str) -> str | None:
        """The id of the image with this name; None when there is none."""
        try:
            images = json.loads(self._run("images", "--json", name))
        except ClusterError:
            return None
        return str(images[0]["id"]) if images else None

    def labels(self, name: str) -> Mapping[str, str]:
        """The labels of an image; empty when it does not exist."""
        try:
            inspected = json.loads(self._run("inspect", "--type", "image", name))
        except ClusterError:
            return {}
        labels: Mapping[str, str] = inspected["OCIv1"]["config"].get("Labels") or {}
        return labels

    def build(
        self,
        name: str,
        context: Path,
        dockerfile: Path,
        *,
        arguments: Mapping[str, str] | None = None,
        volumes: Mapping[Path, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Build `dockerfile` with cached layers.

        `volumes` are mounted during RUN lines only. The host's certificates are always mounted, read-only:
        the build trusts the proxies that the host trusts, and no image contains them.
        """
        mounts = {CERTIFICATES: f"{CERTIFICATES}:ro", Path("/etc/resolv.conf"): "/etc/resolv.conf:ro"}
        args: list[str | Path] = ["build", "--isolation", "chroot", "--network", "host", "--layers"]
        for source, target in {**mounts, **(volumes or {})}.items():
            args += ["--volume", f"{source}:{target}"]
        for key, value in (arguments or {}).items():
            args += ["--build-arg", f"{key}={value}"]
        for key, value in (labels or {}).items():
            args += ["--label", f"{key}={value}"]
        self._run(*args, "--file", dockerfile, "--tag", name, context)

    def prune(self) -> None:
        """Delete layers that no named image uses, and what killed builds left behind."""
        self._run("rm", "--all")
        self._run("rmi", "--prune")

    def push(self, name: str) -> None:
        """Push the layers that the registry does not have."""
        path = name.split("/", 1)[1]
        target = f"docker://{HOST}:{REGISTRY_PORT}/{path}"
        direct = {"NO_PROXY": HOST, "no_proxy": HOST}
        # zstd: half the processor time of gzip, here and where the nodes pull.
        compression = ("--compression-format=zstd", "--compression-level=1")
        self._run("push", "--tls-verify=false", *compression, name, target, environment=direct)


def build_environment(environment: Mapping[str, str]) -> str:
    """Shell lines for RUN with the caller's package indexes and proxies; pip's settings are passed to uv
    too."""
    kept = {
        name: value
        for name, value in environment.items()
        if name.lower().endswith("_proxy") or name.startswith(("UV_", "PIP_"))
    }
    for name in ("PIP_FIND_LINKS", "PIP_CERT", "PIP_CACHE_DIR", "UV_CACHE_DIR", "UV_PYTHON"):
        kept.pop(name, None)  # paths on the host
    for uv, pip in (("UV_DEFAULT_INDEX", "PIP_INDEX_URL"), ("UV_INDEX", "PIP_EXTRA_INDEX_URL")):
        if pip in kept and uv not in kept:
            kept[uv] = kept[pip]
    kept["UV_LINK_MODE"] = "copy"  # the cache is mounted: another file system
    kept["SSL_CERT_FILE"] = str(CERTIFICATES / "ca-certificates.crt")
    return "".join(f"export {name}={_quoted(value)}\n" for name, value in sorted(kept.items()))


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"


def write_build_environment(paths: Paths) -> Path:
    """Write the file that Dockerfiles source as /run/build-environment. Returns its path."""
    path = paths.cache / "build-environment"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(build_environment(os.environ))
    return path


def scratch_dockerfile(files: Sequence[tuple[str, str]], entrypoint: str) -> str:
    """A Dockerfile for an image of single files: (name in the context, path in the image)."""
    lines = ["FROM scratch", *(f"COPY {source} {target}" for source, target in files)]
    return "\n".join([*lines, f'ENTRYPOINT ["{entrypoint}"]']) + "\n"
