"""The figures of `make bench-scale`: what is counted, and the table."""

import asyncio
import json
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from localcluster.controlplane import STANDARD_HEARTBEATS
from megatron_operator.api.platform import PlatformConfig

from bench import scale
from bench.scale_client import Client
from bench.scale_cluster import OPERATOR, PLATFORM, RENEWALS, AuditLog, counts, heartbeats, recipe
from bench.scale_manifests import NAME, UID, job_manifest, start_manifests
from bench.scale_measure import Measured, Restart, Started, Steady, Takeover
from bench.scale_processes import FakePods, Load, usage
from bench.scale_report import BEGIN, END, PAGE, Found, Scale, page, section, table
from tests.unit.controller.simulated_run import run_on

LATENCIES = [float(n) for n in range(1, 101)]


def line(verb: str, resource: str, name: str, second: int, *, code: int = 200, user: str = OPERATOR) -> str:
    plural, _, subresource = resource.partition("/")
    about = {"resource": plural, "name": name} | ({"subresource": subresource} if subresource else {})
    event = {
        "stageTimestamp": f"2026-01-01T00:00:{second:02}.000000Z",
        "user": {"username": user},
        "verb": verb,
        "objectRef": about,
        "responseStatus": {"code": code},
    }
    return json.dumps(event) + "\n"


@pytest.mark.parametrize("nodes", [500, 501, 2000, 10_000])
def test_simulated_nodes_renew_a_bounded_number_of_leases_a_second(nodes: int) -> None:
    found = heartbeats(nodes)
    assert nodes / (found.lease / 4) <= RENEWALS
    assert found.grace > found.lease  # A node is not lost before its lease is.


def test_few_simulated_nodes_have_the_heartbeats_of_kubelets() -> None:
    assert heartbeats(100) == STANDARD_HEARTBEATS


def test_requests_are_counted_by_verb_and_resource_without_watches_and_other_users(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text(
        line("get", "pods", "a", 1)
        + line("patch", "megatronrecipes/status", "a", 2)
        + line("watch", "pods", "", 3)
        + line("get", "pods", "a", 4, user="somebody")
    )
    found = AuditLog(path).between(0.0, time.time() + 1e9)
    assert counts(found) == Counter({"get pods": 1, "patch megatronrecipes/status": 1})
    assert [each.write for each in found] == [False, True, False]


def test_a_line_that_is_half_written_is_read_later(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    whole = line("create", "pytorchjobs", "a", 1, code=201)
    path.write_text(whole + whole[:20])
    log = AuditLog(path)
    assert len(log.read()) == 1
    path.write_text(whole + whole)
    assert len(log.read()) == 2


def test_only_what_was_created_counts_as_created(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text(
        line("create", "pytorchjobs", "posted", 1, code=201)
        + line("patch", "pytorchjobs", "applied", 2, code=201)
        + line("patch", "pytorchjobs", "changed", 3, code=200)
        + line("create", "pytorchjobs", "refused", 4, code=409)
    )
    assert AuditLog(path).created("pytorchjobs").keys() == {"posted", "applied"}


def test_deletions_are_counted_by_user_if_they_were_accepted(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text(
        line("delete", "pods", "a", 1)
        + line("delete", "pods", "b", 2, user="somebody")
        + line("delete", "pods", "c", 3, user="somebody")
        + line("delete", "pods", "c", 4, user="late", code=404)
        + line("delete", "jobs", "d", 5)
    )
    assert list(AuditLog(path).deletions("pods").items()) == [("somebody", 2), (OPERATOR, 1)]


def test_the_bare_job_is_the_one_that_the_operator_makes() -> None:
    job = job_manifest()
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert sum(each["replicas"] for each in replicas.values()) == 2
    assert "metadata" not in job


def operators_writes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the operator itself writes for a recipe of the bench until its job is reported."""
    written: list[Any] = []
    with run_on(PlatformConfig.model_validate(PLATFORM), monkeypatch) as run:
        run.api.recipe = run.api.recipe | {"spec": recipe(NAME)["spec"]}
        for name in ("create", "apply"):
            method = getattr(run.api, name)

            def write(resource: Any, body: Any, *rest: Any, _method: Any = method) -> Any:
                written.append(body)
                return _method(resource, body, *rest)

            monkeypatch.setattr(run.api, name, write)
        run.operator.reconcile()
    return written


def comparable(manifest: Any) -> Any:
    """A manifest without what differs between two recipes of the same spec, or is random."""
    values = {"name", "namespace", "uid", "resourceVersion", "gang-token"}
    if isinstance(manifest, dict):
        return {key: comparable(value) for key, value in manifest.items() if key not in values}
    if isinstance(manifest, list):
        return [comparable(each) for each in manifest]
    if isinstance(manifest, str):
        named = re.sub(rf"{NAME}|\brun\b", "NAME", manifest.replace("bench", "default"))
        named = re.sub(rf"{UID}|recipe-uid", "VALUE", named)
        return re.sub(r"\b[0-9a-f]{8,64}\b|[0-9-]{10}T[0-9:]{8}Z|[A-Za-z0-9+/]{43,}=*", "VALUE", named)
    return manifest


def test_the_plain_client_writes_what_the_operator_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = operators_writes(monkeypatch)
    kinds = ["PersistentVolumeClaim", "Secret", "PyTorchJob", "MegatronRecipe"]
    assert [each["kind"] for each in expected[:4]] == kinds
    assert comparable(start_manifests()) == comparable(expected[:4])


def test_the_plain_client_starts_recipes_that_are_created_and_no_others_and_watches_on() -> None:
    writes: list[tuple[str, Any]] = []

    class Server:
        async def versioned_pages(self, *_: object) -> AsyncIterator[tuple[str, list[Any]]]:
            yield "5", [made("old")]

        async def watch(self, _resource: object, version: str, _seconds: int) -> AsyncIterator[Any]:
            if version == "7":  # after the end of the first watch
                while len(writes) < 4:
                    await asyncio.sleep(0)
                raise EOFError
            assert version == "5"
            yield {"type": "ADDED", "object": made("new", "6")}
            yield {"type": "MODIFIED", "object": made("new", "7")}

        async def create(self, resource: Any, body: Any) -> Any:
            writes.append((resource.plural, body))
            return {"metadata": {"uid": f"uid-of-{resource.plural}"}}

        async def apply(self, resource: Any, body: Any, subresource: str) -> None:
            writes.append((f"{resource.plural}/{subresource}", body))

    def made(name: str, version: str = "4") -> Any:
        return {"metadata": {"name": name, "uid": f"uid-of-{name}", "resourceVersion": version}}

    api: Any = Server()
    with pytest.RaisesGroup(EOFError):
        asyncio.run(Client(api, [json.dumps(each) for each in start_manifests()]).run())
    resources = ["persistentvolumeclaims", "secrets", "pytorchjobs", "megatronrecipes/status"]
    assert [resource for resource, _ in writes] == resources
    assert NAME not in json.dumps(writes)
    status = writes[-1][1]
    identity = {"name": "new", "uid": "uid-of-new", "resourceVersion": "6", "namespace": "bench"}
    assert status["metadata"] == identity
    assert status["status"]["job"]["uid"] == "uid-of-pytorchjobs"


def test_pods_make_an_iteration_a_second_until_they_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [1000.0]
    monkeypatch.setattr("bench.scale_processes.time.time", lambda: moment[0])
    pods = FakePods()
    moment[0] += 7
    assert pods.report("any")["iteration"] == 7
    pods.freeze()
    moment[0] += 7
    assert pods.report("any")["iteration"] == 7
    pods.changes["lost"] = {"phase": "rendezvous"}
    assert (pods.report("lost")["phase"], pods.report("any")["phase"]) == ("rendezvous", "training")
    pods.stop()


def test_the_usage_of_a_process_includes_this_one() -> None:
    found = usage(1)
    assert found.cpu >= 0.0
    assert found.rss > 0


def test_the_load_of_the_machine_has_that_of_each_process() -> None:
    before = Load.now(os.getpid())
    while (used := Load.now(os.getpid()).since(before)).server < 0.2:
        sum(range(10_000))
    # The machine's time is sampled at ticks of 10 ms, and lacks what a hypervisor takes.
    assert used.all > used.server / 2


def found() -> Found:
    requests = Counter({"create pytorchjobs": 100, "get configmaps": 1})
    started = Started(LATENCIES, 120.0, Load(70.0, 190.0), 5.0, requests)
    writes = Counter({"patch megatronrecipes/status": 330})
    steady = Steady(10.0, writes, 0, 330, 420, 0.125, 200 * 2**20, Load(6.0, 15.0))
    restart = Restart(None, 5, 0, 200 * 2**20)
    measured = Measured(started, 30.0, 70 * 2**20, steady, [1.0, 2.0, 9.0], restart, Takeover(11.5, 0))
    return Found(started, started, started, measured)


def test_the_table_has_percentiles_rates_and_requests_per_recipe() -> None:
    text = "\n".join(table(Scale(100, 200), found()))
    assert "51.0 / 100.0 / 120.0 s" in text
    assert "create pytorchjobs 1.00, get configmaps 0.01" in text
    alone = "training-operator alone: requests per job until then"
    assert f"{alone} | create pytorchjobs 1.00, get configmaps 0.01 |" in text
    assert "bare kopf operator: CPU until then | 5.0 s |" in text
    assert "plain client, this operator's writes: recipe to job, p50 / p99 / last | 51.0 / " in text
    assert "reads / writes a second | 0.0 / 33.0 |" in text
    assert "reconciles a second | 42.0 |" in text
    assert "CPU of the API server, and of all, until then | 70, 190 s |" in text
    assert "all train: CPU of the API server, and of all | 0.60, 1.50 cores |" in text
    assert "2.0 / 9.0 s of 3" in text
    assert "not within 120 s" in text


def test_the_page_is_changed_between_its_marks_only() -> None:
    text = PAGE.read_text()
    new = page(text, section(Scale(100, 200), found(), "make bench-scale"))
    assert new.split(BEGIN)[0] == text.split(BEGIN)[0]
    assert new.split(END)[1] == text.split(END)[1]
    assert "`make bench-scale`\n" in new


def test_recipes_without_room_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scale.main(["--recipes", "100", "--nodes", "49"])
    assert "have no room for 100 recipes" in capsys.readouterr().err
