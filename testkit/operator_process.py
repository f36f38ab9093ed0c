"""The operator as a real process with the rights of its service account."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

OPERATOR_NAMESPACE = "megatron-system"


def write_kubeconfig(path: Path, server: str, token: str, ca_file: str | None = None) -> None:
    """Write a kubeconfig that authenticates with a token; `ca_file` is needed for https."""
    cluster = {"server": server} | ({} if ca_file is None else {"certificate-authority": ca_file})
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "u", "user": {"token": token}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    path.chmod(0o600)


class OperatorProcess:
    """A `megatron-operator` that can be started, killed and started again."""

    def __init__(
        self,
        kubeconfig: Path,
        log: Path,
        progress_url: str,
        options: list[str],
        module: tuple[str, ...] = ("megatron_operator.controller.main",),
        packages: Sequence[Path] = (),
    ) -> None:
        """`module` is the one to run, with arguments before the options; `packages` are imported first."""
        self._module = module
        self._options = options
        self._kubeconfig = kubeconfig
        self._environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
        if packages:
            self._environment["PYTHONPATH"] = os.pathsep.join(map(str, packages))
        self._log = log
        self._progress_url = progress_url
        self._process: subprocess.Popen[bytes] | None = None

    def with_options(self, *more: str) -> "OperatorProcess":
        """Another process with more options and its own log file."""
        log = self._log.with_name(f"{self._log.stem}-with-options.log")
        log.unlink(missing_ok=True)
        options = [*self._options, *more]
        return OperatorProcess(self._kubeconfig, log, self._progress_url, options, self._module)

    def from_source(self, source: Path, kubeconfig: Path) -> "OperatorProcess":
        """The operator of another version, from its source tree, with its own rights and log file."""
        log = self._log.with_name(f"{self._log.stem}-{source.name}.log")
        packages = (source / "operator", source / "contract")
        return OperatorProcess(kubeconfig, log, self._progress_url, self._options, self._module, packages)

    def start(self) -> None:
        """Start the process, which must not be running."""
        assert not self.running()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    *self._module,
                    f"--progress-url={self._progress_url}",
                    "--progress-interval=0.5",
                    "--liveness-port=0",
                    *self._options,
                ],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process, which must have been started."""
        assert self._process is not None
        return self._process.pid

    def ensure(self) -> None:
        """Start the process unless it is running."""
        if not self.running():
            self.start()

    def kill(self) -> None:
        """SIGKILL, as when a node loses power."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP: the process does nothing and notices nothing until it is continued."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    @property
    def exit_code(self) -> int | None:
        """The exit code of the last process; None while it runs."""
        return None if self._process is None else self._process.poll()

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(30)

    def log(self) -> str:
        """All log output of all its lives."""
        return self._log.read_text(errors="replace")
