"""Checks the topology of an accelerator's profile: keys, sizes of domains, and their uplinks."""

import itertools
from collections.abc import Iterator
from typing import Final

from megatron_operator.api.errors import FieldError, field_path, shown
from megatron_operator.api.labels import LABEL_CLIQUE
from megatron_operator.api.platform import AcceleratorProfile, TopologyDomain

_KNOWN_LEVELS: Final = {
    "kubernetes.io/hostname": "perNode accelerators",
    LABEL_CLIQUE: "an NVLink domain, of the table or dataSheet",
}


def topology_errors(profile: AcceleratorProfile, at: str) -> Iterator[FieldError]:
    """Errors of `topology`, `requiredTopology` and `topologyDomains` of the profile at the path `at`."""
    required, keys = profile.required_topology, profile.topology
    if required is not None and required not in keys:
        yield FieldError(
            f"{at}.requiredTopology", f"{shown(required)} is not in topology ({', '.join(keys) or 'empty'})",
            "add it to topology, nearest first, or require one of its keys",
        )  # fmt: skip
    if profile.topology_domains and profile.platform == "cpu":
        message = "has no effect with platform cpu, which is planned without memory and speed"
        yield FieldError(f"{at}.topologyDomains", message, "leave it out, or set platform to gpu")
        return
    for key, domain in profile.topology_domains.items():
        yield from _domain_errors(key, domain, profile, field_path(f"{at}.topologyDomains", key))
    known = [(key, profile.topology_domains[key].nodes) for key in keys if key in profile.topology_domains]
    for (near, fewer), (far, more) in itertools.pairwise(known):
        if more <= fewer:
            yield FieldError(
                f"{field_path(f'{at}.topologyDomains', far)}.nodes",
                f"{more} is not above the {fewer} of {near}, which is nearer in topology",
                "correct one of the two, or the order of topology, nearest first",
            )
    yield from _uplink_errors(profile, at)


def _uplink_errors(profile: AcceleratorProfile, at: str) -> Iterator[FieldError]:
    """Errors of uplinks above the bandwidth within their domain, which bounds what leaves it."""
    sheet = profile.data_sheet
    within, source = (sheet.network_gbps, "dataSheet.networkGBps") if sheet else (None, "")
    for key in profile.topology:
        domain = profile.topology_domains.get(key)
        if domain is None:
            continue
        uplink = domain.uplink_gbps
        if uplink is not None and within is not None and uplink > within:
            yield FieldError(
                f"{field_path(f'{at}.topologyDomains', key)}.uplinkGBps",
                f"{uplink:g} is above the {within:g} within its domains, by {source}",
                "correct one of the two, or leave it out: then it is that within the domain",
            )
        if uplink is not None:
            within, source = uplink, f"the uplink of {key}"
        elif within is not None and domain.oversubscription is not None:
            within, source = within / domain.oversubscription, f"the oversubscription of {key}"


def _domain_errors(
    key: str, domain: TopologyDomain, profile: AcceleratorProfile, at: str
) -> Iterator[FieldError]:
    if key in _KNOWN_LEVELS:
        message = f"the size of {shown(key)} is known: it is {_KNOWN_LEVELS[key]}"
        yield FieldError(at, message, "leave it out")
    elif key not in profile.topology:
        yield FieldError(
            at, f"{shown(key)} is not in topology ({', '.join(profile.topology) or 'empty'})",
            "add it to topology, nearest first, or leave it out",
        )  # fmt: skip
    if domain.uplink_gbps is not None and domain.oversubscription is not None:
        yield FieldError(
            f"{at}.oversubscription",
            f"{domain.oversubscription:g}: uplinkGBps is set too",
            "leave one of the two out",
        )
