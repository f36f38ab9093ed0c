"""Certificates and kubeconfig files, created with openssl. Keys are P-256."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

from localcluster.commands import run

DAYS = "3650"


@dataclass(frozen=True)
class Certificate:
    """The subject (common name, organisation) of one certificate, and the hosts that it is valid for."""

    name: str
    common_name: str
    organisation: str = ""
    hosts: tuple[str, ...] = ()

    def subject(self) -> str:
        """The subject in openssl's notation."""
        organisation = f"/O={self.organisation}" if self.organisation else ""
        return f"{organisation}/CN={self.common_name}"

    def extensions(self) -> str:
        """The openssl extension file, for clients and servers."""
        lines = [
            "basicConstraints=critical,CA:FALSE",
            "keyUsage=critical,digitalSignature,keyEncipherment",
            "extendedKeyUsage=clientAuth,serverAuth",
            "subjectKeyIdentifier=hash",
            "authorityKeyIdentifier=keyid",
        ]
        if self.hosts:
            names = [("IP:" if _is_address(host) else "DNS:") + host for host in self.hosts]
            lines.append("subjectAltName=" + ",".join(names))
        return "\n".join(lines) + "\n"


def _is_address(host: str) -> bool:
    return host.replace(".", "").isdigit() or ":" in host


def _openssl(*args: str | Path) -> None:
    run(["openssl", *args])


class Authority:
    """A certificate authority and the certificates that it signed, in one folder."""

    def __init__(self, directory: Path, name: str = "megatron-local-cluster", rsa: bool = False) -> None:
        """`rsa`: the authority's own key is RSA in PKCS#1, for programs that accept nothing else."""
        self.directory = directory
        self.name = name
        self.rsa = rsa

    @property
    def certificate(self) -> Path:
        """The authority's certificate."""
        return self.directory / "ca.crt"

    def crt(self, name: str) -> Path:
        """A signed certificate."""
        return self.directory / f"{name}.crt"

    def key(self, name: str) -> Path:
        """The private key of a certificate, of `ca`, or of `service-account`."""
        return self.directory / f"{name}.key"

    def _new_key(self, name: str) -> Path:
        path = self.key(name)
        _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path)
        path.chmod(0o600)
        return path

    def create(self) -> None:
        """Create the authority and the service-account signing key, unless they exist."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.certificate.exists():
            return
        account = self._new_key("service-account")
        _openssl("pkey", "-in", account, "-pubout", "-out", self.directory / "service-account.pub")
        key = self.key("ca")
        if self.rsa:
            _openssl("genrsa", "-traditional", "-out", key, "2048")
            key.chmod(0o600)
        else:
            self._new_key("ca")
        # Written last: where it exists, everything else exists.
        _openssl(
            *("req", "-x509", "-new", "-key", key, "-days", DAYS, "-subj", f"/CN={self.name}"),
            *("-addext", "keyUsage=critical,digitalSignature,keyCertSign,cRLSign"),
            *("-addext", f"subjectAltName=DNS:{self.name}"),
            *("-out", self.certificate),
        )

    def sign(self, requested: Certificate) -> None:
        """Create key and certificate, unless a certificate with the same subject and hosts exists."""
        stamp = self.directory / f"{requested.name}.ext"
        text = f"# {requested.subject()}\n{requested.extensions()}"
        if stamp.exists() and stamp.read_text() == text:
            return
        key = self._new_key(requested.name)
        request = self.directory / f"{requested.name}.csr"
        extensions = self.directory / f"{requested.name}.ext.partial"
        extensions.write_text(text)
        _openssl("req", "-new", "-key", key, "-subj", requested.subject(), "-out", request)
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key("ca")),
            *("-CAcreateserial", "-days", DAYS, "-extfile", extensions, "-out", self.crt(requested.name)),
        )
        request.unlink()
        extensions.rename(stamp)

    def kubeconfig(self, name: str, server: str, path: Path) -> None:
        """Write a kubeconfig that contains the certificate and key of `name`."""

        def encoded(file: Path) -> str:
            return base64.b64encode(file.read_bytes()).decode()

        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "local",
                    "cluster": {"server": server, "certificate-authority-data": encoded(self.certificate)},
                }
            ],
            "users": [
                {
                    "name": name,
                    "user": {
                        "client-certificate-data": encoded(self.crt(name)),
                        "client-key-data": encoded(self.key(name)),
                    },
                }
            ],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": name}}],
            "current-context": "local",
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        partial.touch(mode=0o600)
        partial.write_text(json.dumps(config, indent=1))
        partial.rename(path)
