"""The contents of certificates, and that they are created only once."""

import subprocess
from pathlib import Path

import pytest
from localcluster.pki import Authority, Certificate

KUBELET = Certificate("node-0", "system:node:node-0", "system:nodes", ("node-0", "10.245.0.10"))


def test_a_nodes_subject_is_that_of_the_node_authorizer() -> None:
    assert KUBELET.subject() == "/O=system:nodes/CN=system:node:node-0"


def test_names_and_addresses_are_distinguished() -> None:
    assert "subjectAltName=DNS:node-0,IP:10.245.0.10" in KUBELET.extensions()


def test_a_client_has_no_names() -> None:
    assert "subjectAltName" not in Certificate("admin", "admin").extensions()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    result = Authority(tmp_path / "pki")
    result.create()
    return result


def test_a_signed_certificate_verifies_against_the_authority(authority: Authority) -> None:
    authority.sign(KUBELET)
    args = ["openssl", "verify", "-x509_strict", "-CAfile", authority.certificate, authority.crt("node-0")]
    assert subprocess.run(args, capture_output=True, text=True, check=True).stdout.endswith("OK\n")


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
