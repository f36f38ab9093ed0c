"""megatron support-bundle against a fake kubectl, and what it replaces."""

import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from megatron_operator.cli.bundle_contents import REDACTED, lines_about, readable_files, redacted
from megatron_operator.cli.main import cli

RECIPE: dict[str, Any] = {
    "metadata": {
        "name": "run",
        "namespace": "research",
        "uid": "u2",
        "creationTimestamp": "2026-01-01T10:00:00Z",
        "managedFields": [{"manager": "kubectl"}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "WANDB_API_KEY: k3y"},
    },
    "spec": {"env": [{"name": "WANDB_API_KEY", "value": "k3y"}, {"name": "NCCL_DEBUG", "value": "INFO"}]},
    "status": {"phase": "Training", "warnings": []},
}
RECIPES = {"items": [RECIPE, {"metadata": {"name": "run-2"}}]}
PODS = {
    "items": [
        {
            "metadata": {
                "name": f"run-worker-{index}",
                "uid": f"pod-{index}",
                "labels": {
                    "megatron.training/role": "trainer",
                    "training.kubeflow.org/replica-type": "worker",
                    "training.kubeflow.org/replica-index": str(index),
                },
            },
            "spec": {"nodeName": "gpu-1"},
            "status": {"containerStatuses": [{"restartCount": index}]},
        }
        for index in range(2)
    ]
}


def event(name: str, uid: str, reason: str, *, kind: str = "Pod", hour: int = 11) -> dict[str, Any]:
    involved = {"kind": kind, "name": name, "uid": uid}
    return {"involvedObject": involved, "reason": reason, "lastTimestamp": f"2026-01-01T{hour:02}:00:00Z"}


EVENTS = [
    event("run", "u2", "Planned", kind="MegatronRecipe"),
    event("run-worker-1", "pod-1", "Scheduled"),
    event("run-worker-0", "replaced", "Evicted"),
    event("run", "u1", "FailedBefore", kind="MegatronRecipe"),
    event("run-worker-0", "of-u1", "KilledBefore", hour=9),
    event("run-2-worker-0", "other", "ScheduledElsewhere"),
    event("runner-0", "none", "Unrelated"),
]
OPERATOR_PODS = {
    "items": [
        {
            "metadata": {"name": f"megatron-operator-{name}", "uid": f"operator-{name}"},
            "spec": {"nodeName": "cpu-1"},
            "status": {"containerStatuses": [{"name": "operator", "restartCount": restarts}]},
        }
        for name, restarts in (("a", 1), ("b", 0))
    ]
}


def owned(name: str, owner: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-of-{name}", "ownerReferences": [{"uid": owner}]}}


BENEATH = {
    "trainjobs.trainer.kubeflow.org": [owned("job", "u2")],
    "jobsets.jobset.x-k8s.io": [owned("set", "uid-of-job"), owned("set-of-another", "other")],
    "workloads.kueue.x-k8s.io": [owned("queued", "uid-of-job"), owned("queued-of-another", "other")],
    "podgroups.scheduling.k8s.io": [owned("gang", "u2")],
}
"""By kind, the objects of a namespace with a run that has a TrainJob."""
FAKE_KUBECTL = """#!/bin/sh
for word in "$@"; do case "$word" in --tail=*) tail=${{word#--tail=}} ;; esac; done
show() {{ if [ "$tail" = -1 ]; then cat "$1"; else tail -n "$tail" "$1"; fi; }}
case "$*" in
    *"logs megatron-operator-a --container operator --previous"*--since-time=2026-01-01T10:00:00Z*)
        show {folder}/operator-previous ;;
    *previous*) echo "before the restart" ;;
    *logs*app.kubernetes.io*--since-time=2026-01-01T10:00:00Z*) show {folder}/operator-log ;;
    *logs*) echo "a line of the log" ;;
    *"get nodes"*) echo 'Error from server (Forbidden): nodes is forbidden' >&2; exit 1 ;;
    *"get pods"*app.kubernetes.io*) cat {folder}/operator-pods ;;
    *"get pods"*) cat {folder}/pods ;;
    *"get megatronrecipes"*" run "*) cat {folder}/recipe ;;
    *"get megatronrecipes"*) cat {folder}/recipes ;;
    *"get events"*) cat {folder}/events ;;
    *"get podgroups.scheduling.x-k8s.io"*)
        echo 'error: the server does not have a resource type "podgroups"' >&2; exit 1 ;;
    *"get "*.*) if [ -f "{folder}/$2" ]; then cat "{folder}/$2"; else echo '{{"items": []}}'; fi ;;
    *version*) echo '{{"serverVersion": {{"gitVersion": "v1.36.3"}}}}' ;;
    *) echo '{{"items": []}}' ;;
esac
"""


def record(namespace: str, text: str = "started") -> str:
    return f"2026-01-01 10:00:00,000 INFO {namespace}/run: {text}\n"


@pytest.fixture(autouse=True)
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "kubectl"
    program.write_text(FAKE_KUBECTL.format(folder=tmp_path))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "recipe").write_text(json.dumps(RECIPE))
    (tmp_path / "recipes").write_text(json.dumps(RECIPES))
    (tmp_path / "pods").write_text(json.dumps(PODS))
    (tmp_path / "operator-pods").write_text(json.dumps(OPERATOR_PODS))
    (tmp_path / "operator-log").write_text(record("research") + record("others"))
    (tmp_path / "operator-previous").write_text(record("research", "killed") + record("others", "killed"))
    (tmp_path / "events").write_text(json.dumps({"items": EVENTS}))
    for kind, objects in BENEATH.items():
        (tmp_path / kind).write_text(json.dumps({"items": objects}))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)


def bundle(*words: str) -> Result:
    return CliRunner().invoke(cli, ["support-bundle", "run", *words], catch_exceptions=False)


def texts() -> dict[str, str]:
    found = {}
    with tarfile.open("run-support.tar.gz") as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            found[member.name.removeprefix("run-support/")] = file.read().decode()
    return found


def test_objects_and_logs_of_the_run_are_in_the_archive() -> None:
    assert bundle().exit_code == 0
    found = texts()
    assert found["logs/run-worker-0.log"] == "a line of the log\n"
    assert "logs/run-worker-0.previous.log" not in found
    assert found["logs/run-worker-1.previous.log"] == "before the restart\n"
    assert yaml.safe_load(found["recipe.yaml"])["status"] == RECIPE["status"]
    assert len(yaml.safe_load(found["pods.yaml"])) == 2


def test_what_decides_when_a_run_gets_nodes_is_in_the_archive() -> None:
    job = {"status": RECIPE["status"] | {"job": {"kind": "TrainJob"}}}
    Path("recipe").write_text(json.dumps(RECIPE | job))
    workload = event("queued", "uid-of-queued", "Pending", kind="Workload")
    Path("events").write_text(json.dumps({"items": [*EVENTS, workload]}))
    bundle()
    found = {path: yaml.safe_load(text) for path, text in texts().items() if path.endswith(".yaml")}
    names = {path: [each["metadata"]["name"] for each in found[f"{path}.yaml"]] for path in list(BENEATH)[1:]}
    assert names == {
        "jobsets.jobset.x-k8s.io": ["set"],
        "workloads.kueue.x-k8s.io": ["queued"],
        "podgroups.scheduling.k8s.io": ["gang"],
    }
    assert "Pending" in [each["reason"] for each in found["events.yaml"]]
    assert "resource type" in found["unread.yaml"]["podgroups.scheduling.x-k8s.io.yaml"]


def test_an_empty_list_stays_empty() -> None:
    assert redacted({"status": {"warnings": []}}) == {"status": {"warnings": []}}


def test_events_are_of_this_run_and_of_its_objects_that_are_gone() -> None:
    bundle()
    reasons = [each["reason"] for each in yaml.safe_load(texts()["events.yaml"])]
    assert reasons == ["Planned", "Scheduled", "Evicted"]


def test_no_file_has_a_credential_of_the_recipe() -> None:
    bundle()
    assert not [path for path, text in texts().items() if "k3y" in text]
    assert {"name": "NCCL_DEBUG", "value": "INFO"} in yaml.safe_load(texts()["recipe.yaml"])["spec"]["env"]


def test_a_platform_file_in_a_config_map_has_no_credential() -> None:
    platform = "accelerators:\n  h100:\n    env: {WANDB_API_KEY: k3y, NCCL_DEBUG: INFO}\n"
    found = readable_files(
        {"metadata": {"name": "megatron-platform"}, "data": {"platform.yaml": platform, "x": "a: ["}}
    )
    hidden = redacted(found)["data"]
    env = {"WANDB_API_KEY": REDACTED, "NCCL_DEBUG": "INFO"}
    assert hidden["platform.yaml"] == [{"accelerators": {"h100": {"env": env}}}]
    assert hidden["x"].startswith("left out: invalid YAML")


def test_what_the_kubeconfig_may_not_read_is_listed_and_the_rest_is_written() -> None:
    done = bundle()
    assert "not read: nodes.yaml: (Forbidden): nodes is forbidden" in done.stdout
    assert "forbidden" in yaml.safe_load(texts()["unread.yaml"])["nodes.yaml"]


def test_the_operators_log_of_other_runs_is_left_out() -> None:
    bundle()
    assert texts()["operator/log.log"] == record("research")


def test_the_operators_log_is_cut_after_the_records_of_other_runs_are_left_out() -> None:
    """In a fleet the last lines of the log are those of others."""
    early = "".join(record("research", f"event {number}") for number in range(3))
    Path("operator-log").write_text(early + record("others") * 5000)
    bundle("--tail", "2")
    assert texts()["operator/log.log"] == record("research", "event 1") + record("research", "event 2")


def test_an_operators_log_without_a_record_of_the_run_is_listed_as_such() -> None:
    Path("operator-log").write_text(record("others"))
    missing = "the log that is kept has no record about research/run since 2026-01-01T10:00:00Z"
    assert f"not read: operator/log.log: {missing}" in bundle().stdout
    assert yaml.safe_load(texts()["unread.yaml"])["operator/log.log"] == missing


def test_the_log_of_an_operator_that_was_restarted_is_read_as_well() -> None:
    bundle()
    logs = {path: text for path, text in texts().items() if path.endswith("operator.previous.log")}
    assert logs == {"operator/megatron-operator-a.operator.previous.log": record("research", "killed")}


def test_a_traceback_belongs_to_the_record_above_it() -> None:
    log = "2026-01-01 a/run: failed\nTraceback\n  File\n2026-01-01 a/run-2: failed\nTraceback of run-2\n"
    assert lines_about(log, "a/run") == "2026-01-01 a/run: failed\nTraceback\n  File\n"


def test_records_of_a_namespace_whose_name_ends_alike_are_not_passed_on() -> None:
    log = "2026-01-01 prod-a/run: failed\nTraceback\n2026-01-01 a/run: Training\n"
    assert lines_about(log, "a/run") == "2026-01-01 a/run: Training\n"


def test_the_log_that_is_never_left_out_is_not_that_of_a_deleted_recipe_of_the_name() -> None:
    ended = {"exitCode": 1, "reason": "Error", "finishedAt": "2026-01-01T10:00:05Z"}
    status = {"containerStatuses": [{"name": "pytorch", "state": {"terminated": ended}}]}
    old = PODS["items"][1]["metadata"] | {"creationTimestamp": "2026-01-01T09:00:00Z"}
    Path("pods").write_text(
        json.dumps({"items": [PODS["items"][0], PODS["items"][1] | {"metadata": old, "status": status}]})
    )
    bundle("--pods", "1")
    assert "logs/run-worker-0.log" in texts()


def test_pods_beyond_the_limit_are_counted() -> None:
    assert "not read: logs: 1 pods left out, raise --pods: run-worker-1 ..." in bundle("--pods", "1").stdout


def test_an_existing_archive_is_kept_unless_forced() -> None:
    Path("run-support.tar.gz").write_text("mine")
    refused = bundle()
    assert refused.exit_code == 2
    assert "exists; choose another file with --archive, or give --force" in refused.stderr
    assert Path("run-support.tar.gz").read_text() == "mine"
    assert bundle("--force").exit_code == 0
    assert "recipe.yaml" in texts()


def test_only_its_owner_can_read_the_archive() -> None:
    bundle("--archive", "bundle.tar.gz")
    assert stat.S_IMODE(Path("bundle.tar.gz").stat().st_mode) == 0o600


def test_json_names_the_files() -> None:
    printed = json.loads(bundle("-o", "json").stdout)
    assert printed["archive"] == "run-support.tar.gz"
    assert "logs/run-worker-1.log" in printed["files"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["--wandb-api-key", "k3y", "--lr", "1"], ["--wandb-api-key", REDACTED, "--lr", "1"]),
        (["--hf-token=k3y"], [f"--hf-token={REDACTED}"]),
        ({"password": "k3y", "secretName": "mine"}, {"password": REDACTED, "secretName": "mine"}),
        ("s3://user:k3y@store/path", f"s3://{REDACTED}@store/path"),
        (["--tokenizer-model", "/data/t"], ["--tokenizer-model", "/data/t"]),
        (["env", "HF_TOKEN=k3y", "LEVEL=1"], ["env", f"HF_TOKEN={REDACTED}", "LEVEL=1"]),
        (
            ["sh", "-c", "export HF_TOKEN='k3 y' && run --api-key k3y --lr 1"],
            ["sh", "-c", f"export HF_TOKEN={REDACTED} && run --api-key {REDACTED} --lr 1"],
        ),
        (
            {"name": "HTTPS_PROXY", "value": "http://me:k3y@proxy:3128"},
            {"name": "HTTPS_PROXY", "value": f"http://{REDACTED}@proxy:3128"},
        ),
        (
            {"name": "OPTIONS", "value": "-v --api-key=k3y"},
            {"name": "OPTIONS", "value": f"-v --api-key={REDACTED}"},
        ),
        ({"name": "DB_PASS", "value": "k3y"}, {"name": "DB_PASS", "value": REDACTED}),
        ({"passwords": ["k3y"], "tokens": 1}, {"passwords": [REDACTED], "tokens": 1}),
        ("exec --token-file /run/token", "exec --token-file /run/token"),
        (
            {"name": "OTEL_EXPORTER_OTLP_HEADERS", "value": "authorization=Bearer k3y,team=nlp"},
            {"name": "OTEL_EXPORTER_OTLP_HEADERS", "value": f"authorization={REDACTED}"},
        ),
        ({"name": "AZURE_STORAGE_KEY", "value": "k3y"}, {"name": "AZURE_STORAGE_KEY", "value": REDACTED}),
        (
            "DefaultEndpointsProtocol=https;AccountKey=k3y",
            f"DefaultEndpointsProtocol=https;AccountKey={REDACTED}",
        ),
        ({"name": "MYSQL_PWD", "value": "k3y"}, {"name": "MYSQL_PWD", "value": REDACTED}),
        ({"name": "APP_SECRETS", "value": "k3y"}, {"name": "APP_SECRETS", "value": REDACTED}),
        ({"name": "PWD", "value": "/workspace"}, {"name": "PWD", "value": "/workspace"}),
        ({"imagePullSecrets": [{"name": "mine"}]}, {"imagePullSecrets": [{"name": "mine"}]}),
    ],
)
def test_credentials_are_replaced_wherever_they_are(value: Any, expected: Any) -> None:
    assert redacted(value) == expected
