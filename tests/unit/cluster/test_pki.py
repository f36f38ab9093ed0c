"""The contents of certificates, and that they are created only once."""

import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store
from localcluster.pki import Authority, Certificate

KUBELET = Certificate("node-0", "system:node:node-0", "system:nodes", ("node-0", "10.245.0.10"))


def test_a_nodes_subject_is_that_of_the_node_authorizer() -> None:
    assert KUBELET.subject().rfc4514_string() == "CN=system:node:node-0,O=system:nodes"


def test_names_and_addresses_are_distinguished() -> None:
    name, address = KUBELET.alternative_names()
    assert name == x509.DNSName("node-0")
    assert address == x509.IPAddress(ipaddress.ip_address("10.245.0.10"))


def test_a_client_has_no_names() -> None:
    assert Certificate("admin", "admin").alternative_names() == []


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    result = Authority(tmp_path / "pki")
    result.create()
    return result


def test_a_signed_certificate_verifies_against_the_authority(authority: Authority) -> None:
    authority.sign(KUBELET)
    store = Store([x509.load_pem_x509_certificate(authority.certificate.read_bytes())])
    verifier = PolicyBuilder().store(store).build_server_verifier(x509.DNSName("node-0"))
    verifier.verify(x509.load_pem_x509_certificate(authority.crt("node-0").read_bytes()), [])


def test_keys_are_readable_only_by_their_owner(authority: Authority) -> None:
    authority.sign(KUBELET)
    for name in ("ca", "service-account", "node-0"):
        assert authority.key(name).stat().st_mode & 0o077 == 0, name


def test_signing_again_changes_nothing_until_a_name_changes(authority: Authority) -> None:
    authority.sign(KUBELET)
    first = authority.crt("node-0").read_bytes()
    authority.sign(KUBELET)
    assert authority.crt("node-0").read_bytes() == first
    authority.sign(Certificate("node-0", "system:node:node-0", "system:nodes", ("node-0", "10.245.0.99")))
    assert authority.crt("node-0").read_bytes() != first
