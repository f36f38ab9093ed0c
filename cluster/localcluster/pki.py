"""Certificates and kubeconfig files. Keys are P-256."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=3650)
type PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Certificate:
    """The subject (common name, organisation) of one certificate, and the hosts that it is valid for."""

    name: str
    common_name: str
    organisation: str = ""
    hosts: tuple[str, ...] = ()

    def subject(self) -> x509.Name:
        """The subject as an X.509 name."""
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, self.common_name)]
        if self.organisation:
            attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, self.organisation))
        return x509.Name(attributes)

    def alternative_names(self) -> list[x509.GeneralName]:
        """The hosts as IP addresses and DNS names."""
        return [_general_name(host) for host in self.hosts]


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: PrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=1))
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _write_key(path: Path, key: PrivateKey) -> None:
    """In PKCS#8, and an RSA key in PKCS#1."""
    rsa_key = isinstance(key, rsa.RSAPrivateKey)
    form = serialization.PrivateFormat.TraditionalOpenSSL if rsa_key else serialization.PrivateFormat.PKCS8
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


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

    def create(self) -> None:
        """Create the authority and the service-account signing key, unless they exist."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.certificate.exists():
            return
        account = ec.generate_private_key(ec.SECP256R1())
        _write_key(self.key("service-account"), account)
        public = account.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (self.directory / "service-account.pub").write_bytes(public)
        key: PrivateKey = (
            rsa.generate_private_key(public_exponent=65537, key_size=2048)
            if self.rsa
            else ec.generate_private_key(ec.SECP256R1())
        )
        _write_key(self.key("ca"), key)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        certificate = (
            _builder(name, name, key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage(authority=True), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(self.name)]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        # Written last: where it exists, everything else exists.
        _write_certificate(self.certificate, certificate)

    def sign(self, requested: Certificate) -> None:
        """Create key and certificate, unless a certificate with the same subject and hosts exists."""
        path = self.crt(requested.name)
        if path.exists() and _matches(path, requested):
            return
        key = ec.generate_private_key(ec.SECP256R1())
        authority = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        signer = serialization.load_pem_private_key(self.key("ca").read_bytes(), password=None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey)
        identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            _builder(requested.subject(), authority.subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
            )
        )
        if names := requested.alternative_names():
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        path.unlink(missing_ok=True)
        _write_key(self.key(requested.name), key)
        _write_certificate(path, builder.sign(signer, hashes.SHA256()))

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


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    partial.rename(path)


def _matches(path: Path, requested: Certificate) -> bool:
    """Whether the certificate in `path` has the requested subject and hosts."""
    found = x509.load_pem_x509_certificate(path.read_bytes())
    extensions = [each.value for each in found.extensions]
    names = [name for each in extensions if isinstance(each, x509.SubjectAlternativeName) for name in each]
    return found.subject == requested.subject() and names == requested.alternative_names()
