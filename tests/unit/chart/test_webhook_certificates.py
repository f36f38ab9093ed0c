"""Where the certificate of the webhook comes from: the chart, or cert-manager."""

from typing import Any

import pytest

from tests.unit.chart.test_chart import of_kind


def values(by_cert_manager: bool) -> dict[str, Any]:
    return {"webhook": {"enabled": True, "certManager": {"enabled": by_cert_manager}}}


def mounted(objects: list[dict[str, Any]]) -> str:
    """The Secret with the certificate that the operator serves."""
    volumes = of_kind(objects, "Deployment", "megatron-operator")["spec"]["template"]["spec"]["volumes"]
    [name] = [each["secret"]["secretName"] for each in volumes if each["name"] == "certificates"]
    return str(name)


def issued(objects: list[dict[str, Any]]) -> set[str]:
    """The Secrets that cert-manager creates, and keeps when the release no longer has their Certificates."""
    return {each["spec"]["secretName"] for each in objects if each["kind"] == "Certificate"}


@pytest.mark.parametrize("by_cert_manager", [False, True])
def test_the_operator_mounts_the_secret_that_is_created(by_cert_manager: bool, render: Any) -> None:
    objects = render(values(by_cert_manager))
    own = {each["metadata"]["name"] for each in objects if each["kind"] == "Secret"}
    assert mounted(objects) in (issued(objects) if by_cert_manager else own)


def test_a_secret_that_cert_manager_keeps_does_not_take_the_name_of_the_charts_own(render: Any) -> None:
    assert mounted(render(values(False))) not in issued(render(values(True)))


def test_a_renewal_by_cert_manager_keeps_the_authority_that_the_api_server_trusts(render: Any) -> None:
    objects = render(values(True))
    configuration = of_kind(objects, "ValidatingWebhookConfiguration", "megatron-operator")
    trusted = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    namespace, name = trusted.split("/")
    leaf = of_kind(objects, "Certificate", name)
    assert (leaf["metadata"]["namespace"], leaf["spec"]["secretName"]) == (namespace, mounted(objects))
    assert "duration" not in leaf["spec"], "cert-manager's 90 days"
    signer = of_kind(objects, "Issuer", leaf["spec"]["issuerRef"]["name"])["spec"]
    [authority] = [
        each["spec"]
        for each in objects
        if each["kind"] == "Certificate" and each["spec"]["secretName"] == signer["ca"]["secretName"]
    ]
    assert (authority["isCA"], authority["duration"]) == (True, "87600h")
    assert of_kind(objects, "Issuer", authority["issuerRef"]["name"])["spec"] == {"selfSigned": {}}
