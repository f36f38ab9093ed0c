"""What the pages show of recorded statuses, hostile and incomplete ones included."""

import re
from typing import Any

import pytest
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.validation import parse_spec
from megatron_operator.catalog import load
from megatron_operator.planner import admit
from megatron_operator.sdk import Recipe
from megatron_operator.ui.app import HEADERS
from megatron_operator.ui.planned_hardware import planned_hardware
from starlette.testclient import TestClient

from testkit.example_runs import ExampleRuns, training_run

RUN = "/runs/research/llama3-8b-web"
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\"'{{ 7*511 }}"


def text_of(page: TestClient, path: str) -> str:
    response = page.get(path)
    assert response.status_code == 200, response.text
    return response.text


def live_parts(text: str) -> list[str]:
    """Ids of the parts that a page which stays open replaces."""
    return re.findall(r'id="([^"]+)" data-live', text)


def add(runs: ExampleRuns, recipe: dict[str, Any]) -> str:
    namespace, name = recipe["metadata"]["namespace"], recipe["metadata"]["name"]
    runs.recipes[namespace, name] = recipe
    return f"/runs/{namespace}/{name}"


def test_the_list_shows_phase_progress_loss_speed_end_and_incident(page: TestClient) -> None:
    text = text_of(page, "/")
    assert "61,300 of 100,000" in text
    assert "2.217" in text
    assert "HangFound 17h57m ago: rank 2 is stopped after iteration 41206" in text
    assert re.search(r"in \d+h\d\dm", text)
    for phase in ("Training", "Recovering", "Failed", "Refused", "Suspended", "Succeeded", "Pending"):
        assert f"</span> {phase}</span>" in text


def test_the_list_begins_with_runs_in_trouble(page: TestClient) -> None:
    phases = re.findall(r"</span> (\w+)</span>", text_of(page, "/"))
    assert phases[:3] == ["Recovering", "Failed", "Refused"]
    assert phases[-1] == "Succeeded"


def test_the_list_is_filtered_by_namespace_phase_and_name(page: TestClient) -> None:
    def names(query: str) -> list[str]:
        return re.findall(r'<a href="/runs/([^"]+)">', text_of(page, f"/?{query}"))

    assert set(names("namespace=vision")) == {"vision/probe-pending", "vision/probe-succeeded"}
    assert names("phase=Recovering") == ["research/llama3-8b-long"]
    assert names("text=CODE") == ["teaching/llama3-8b-code"]
    assert names("namespace=vision&phase=Training") == []


def test_500_runs_are_shown_in_pages_of_100(page: TestClient, runs: ExampleRuns) -> None:
    for number in range(500):
        add(runs, training_run(f"many-{number:03}", "fleet"))
    first, last = text_of(page, "/?namespace=fleet"), text_of(page, "/?namespace=fleet&page=5")
    assert "500 runs, page 1 of 5" in first
    assert "many-000" in first
    assert "many-100" not in first
    assert "many-499" in last
    assert text_of(page, "/?namespace=fleet&page=99") == last.replace("page=5", "page=99")


def test_a_run_has_its_charts_with_incidents_and_values_as_a_table(page: TestClient) -> None:
    text = text_of(page, RUN)
    assert re.findall(r"<figcaption>(.+?)</figcaption>", text) == [
        "Loss", "Learning rate", "Tokens per second", "MFU",
    ]  # fmt: skip
    assert text.count("<polyline") == 4
    assert text.count('class="incident-label"') == 12, "three incidents in each of four charts"
    assert "incident 2 at iteration 12933: uncorrectable ECC error on GPU 1" in text
    assert '<td class="number">61,300</td>' in text


def test_a_run_has_its_validation_losses_beside_the_loss_and_as_a_table(
    page: TestClient, runs: ExampleRuns
) -> None:
    assert "alidation" not in text_of(page, RUN)
    recipe = training_run("evaluated")
    evaluations = [{"iteration": 1000 * n, "loss": 3.0 - n / 64} for n in range(1, 41)]
    best = {"bestIteration": 40_000, "bestLoss": 2.375}
    recipe["status"]["validation"] = evaluations[-1] | best | {"evaluations": evaluations}
    text = text_of(page, add(runs, recipe))
    assert "validation: 2.38 at iteration 40000, lowest 2.38, highest 2.98" in text
    assert text.count('class="line-1"') == 1
    assert '<span class="key line second"></span> validation' in text
    rows = re.findall(
        r'<tr><td class="number">([0-9,]+)</td><td class="number">(.+?)</td><td>(.*?)</td></tr>', text
    )
    assert len(rows) == 40
    assert rows[0] == ("1,000", "2.9844", "")
    assert rows[-1] == ("40,000", "2.375", "lowest")


def test_evaluations_are_drawn_before_any_loss_is_known(page: TestClient, runs: ExampleRuns) -> None:
    recipe = training_run("first")
    recipe["status"]["progress"] = {"iteration": 10}
    recipe["status"]["validation"] = {
        "iteration": 10,
        "loss": 2.5,
        "evaluations": [{"iteration": 10, "loss": 2.5}],
    }
    text = text_of(page, add(runs, recipe))
    assert "validation: 2.5 at iteration 10" in text
    assert 'class="dot-1"' in text


def test_a_run_has_plan_against_reality_ledger_checkpoint_and_failure(page: TestClient) -> None:
    text = text_of(page, RUN)
    assert re.search(r"Memory of the fullest accelerator</th><td[^>]*>[\d.]+ of 79 GiB</td>"
                     r"<td[^>]*>61.0 GiB reserved by the last stage</td><td[^>]*>–<", text)  # fmt: skip
    assert re.search(r"Seconds per iteration</th><td[^>]*>[\d.]+</td><td[^>]*>[\d.]+</td><td[^>]*>1.06", text)
    assert "iteration 61,200" in text
    assert "Pod that failed first" in text
    assert "llama3-8b-web-master-0: rank 2 is stopped after iteration 41206" in text
    assert "Its log around 2026-01-03T18:02:55Z." in text
    assert "no answer to the request for its stacks" in text
    assert 'class="part-train"' in text
    assert "lost 11m03s (detect 10m04s, load 33 s, redo 26 s)" in text


def test_measured_memory_is_that_of_the_fullest_rank_of_all_stages(
    page: TestClient, runs: ExampleRuns
) -> None:
    recipe = training_run("measured")
    planned = recipe["status"]["plan"]["memoryPerGpu"]["total"]
    stages = [(0, 3, planned), (1, 9, planned * 3 // 2)]
    recipe["status"]["memory"] = {
        "layout": "TP 1",
        "stages": [{"stage": stage, "rank": rank, "bytes": size} for stage, rank, size in stages],
    }
    recipe["status"]["plan"]["pipelineModelParallelSize"] = 2
    text = text_of(page, add(runs, recipe))
    shown = f"{planned * 1.5 / 2**30:.1f} GiB reserved by rank 9 of stage 1"
    assert re.search(rf"Memory of the fullest.*?{shown}</td><td[^>]*>1.50", text, re.DOTALL)
    assert "by the last stage" not in text


@pytest.mark.parametrize(
    ("condition", "reason", "message"),
    [
        ("Running", "VolumeClaimMissing", "claim corpus does not exist"),
        ("Running", "Unschedulable", "no node fits 8 GPUs"),
        ("Prepared", "Preparing", "the Job is running"),
        ("Imported", "ImportFailed", "no such model"),
    ],
)
def test_why_a_run_waits_is_on_its_page_and_in_the_list(
    page: TestClient, runs: ExampleRuns, condition: str, reason: str, message: str
) -> None:
    recipe = training_run("waits")
    unmet = {"type": condition, "status": "False", "reason": reason, "message": message}
    planned = {"type": "Planned", "status": "True", "reason": "Planned", "message": "TP 2"}
    stalled = unmet | {"type": "Stalled", "status": "True"}
    times = {"lastTransitionTime": "2026-01-04T11:00:00Z"}
    conditions = [each | times for each in (planned, unmet, stalled)]
    recipe["status"] = {"phase": "Pending", "observedGeneration": 1, "conditions": conditions}
    path = add(runs, recipe)
    assert f'<span class="waits">{reason}: {message}</span>' in text_of(page, "/?text=waits")
    problems = re.findall(r'<p class="problem">(.*?)</p>', text_of(page, path))
    assert problems == [f"not {condition} ({reason}): {message}"]


def test_a_run_that_trains_or_is_suspended_waits_for_nothing(page: TestClient, runs: ExampleRuns) -> None:
    for phase in ("Training", "Suspended", "Succeeded"):
        recipe = training_run(f"goes-{phase.lower()}")
        recipe["status"]["phase"] = phase
        imported = {"type": "Imported", "status": "True", "reason": "Imported", "message": "61 tensors"}
        recipe["status"]["conditions"].append(imported | {"lastTransitionTime": "2026-01-01T10:00:00Z"})
        path = add(runs, recipe)
        assert "waits" not in text_of(page, f"/?text=goes-{phase.lower()}")
        assert 'class="problem"' not in text_of(page, path)


def test_a_run_that_exports_waits_for_the_export(page: TestClient, runs: ExampleRuns) -> None:
    recipe = training_run("exports")
    ended = {"type": "Running", "status": "False", "reason": "Succeeded", "message": "it has trained"}
    exports = {"type": "Exported", "status": "False", "reason": "Exporting", "message": "the Job is running"}
    times = {"lastTransitionTime": "2026-01-04T11:00:00Z"}
    conditions = [each | times for each in (ended, exports)]
    recipe["status"] = {"phase": "Exporting", "observedGeneration": 1, "conditions": conditions}
    path = add(runs, recipe)
    assert '<span class="waits">Exporting: the Job is running</span>' in text_of(page, "/?text=exports")
    problems = re.findall(r'<p class="problem">(.*?)</p>', text_of(page, path))
    assert problems == ["not Exported (Exporting): the Job is running"]


def test_a_slow_rank_is_a_problem_of_its_run(page: TestClient, runs: ExampleRuns) -> None:
    recipe = training_run("slow")
    slow = {"rank": 3, "pod": "worker-0", "node": "gpu-2", "iteration": 9, "slowdown": 1.5, "ownSeconds": 3.0}
    recipe["status"]["stragglers"] = [slow | {"peerSeconds": 2.0, "since": "2026-01-04T11:00:00Z"}]
    (problem,) = re.findall(r'<p class="problem">(.*?)</p>', text_of(page, add(runs, recipe)))
    assert "gpu-2" in problem


def test_choosing_a_rank_marks_its_groups(page: TestClient) -> None:
    text = text_of(page, f"{RUN}?rank=25")
    assert "<strong>TP</strong> 24, 25" in text
    assert text.count(" chosen") == 1
    assert " chosen" not in text_of(page, f"{RUN}?rank=64"), "there is no rank 64"
    assert " chosen" not in text_of(page, f"{RUN}?rank=x")


def test_two_runs_are_compared_in_charts_properties_and_settings(page: TestClient) -> None:
    text = text_of(page, "/compare?a=research/llama3-8b-web&b=teaching/llama3-8b-code")
    assert text.count('class="line-0"') == text.count('class="line-1"') == 4
    assert re.search(r"training.lr</code></th><td[^>]*>0.0003</td><td[^>]*>0.0002</td>", text)
    assert "namespace/name" in text_of(page, "/compare?a=research/llama3-8b-web")
    assert page.get("/compare?a=research/llama3-8b-web&b=research/none").status_code == 404
    assert page.get("/compare?a=x&b=y").status_code == 404


def test_the_recipe_is_compared_with_the_published_one(page: TestClient, runs: ExampleRuns) -> None:
    recipe = training_run("other", lr=7e-5)
    del recipe["spec"]["parallelism"]
    text = text_of(page, add(runs, recipe) + "/recipe")
    assert re.search(r"<code>--lr</code></th><td><code>0.0003</code></td><td><code>7e-05</code>", text)
    assert "lr: 7.0e-05" in text


def test_a_recipe_without_a_type_is_compared_for_the_accelerators_of_its_plan(
    page: TestClient, runs: ExampleRuns
) -> None:
    """Where the operator discovers accelerators, no platform file names them."""
    recipe = training_run("discovered")
    spec = {"recipe": "llama3-8b", "data": {"mockData": True}, "accelerator": {"count": 64}}
    on_b200 = spec | {"accelerator": {"type": "b200", "count": 64}}
    planned = Recipe.from_dict(recipe | {"spec": on_b200}).plan()
    assert (planned.plan.context_parallel_size, planned.plan.micro_batch_size) == (1, 2), "2 and 1 on H100"
    spec |= {"parallelism": {"contextParallelSize": 1}, "training": {"microBatchSize": 2}}
    recipe |= {"spec": spec, "status": {"plan": planned.plan.wire()}}
    text = text_of(page, add(runs, recipe) + "/recipe")
    assert "b200 has the memory and peak of the run&#39;s plan" in text
    assert "<p>None.</p>" in text, "set as planned"


def test_a_recipe_that_names_its_accelerator_or_has_no_plan_is_not_compared_by_a_plan(
    page: TestClient, runs: ExampleRuns
) -> None:
    named = training_run("named")
    assert "accelerator.type" not in text_of(page, add(runs, named) + "/recipe")
    named["spec"]["accelerator"] = {"count": 64}
    del named["status"]["plan"]
    named["metadata"] |= {"name": "new", "uid": "new"}
    text = text_of(page, add(runs, named) + "/recipe")
    assert "names no accelerator.type, and its plan has none: h100-sxm is assumed." in text


@pytest.mark.parametrize(("name", "found"), [("gb200", "gb200"), ("h800", "h100-sxm")])
def test_the_accelerator_of_a_plan_is_found_by_its_memory_and_peak(name: str, found: str) -> None:
    run: dict[str, Any] = {"name": "any", "accelerator": name, "count": 8, "data": {"mockData": True}}
    assert planned_hardware(Recipe("llama3-8b", **run, training={"bf16": False}).plan().plan) == found
    plan = Recipe("llama3-8b", **run).plan().plan
    assert planned_hardware(plan) == found
    assert plan.expected is not None
    slower = plan.expected.model_copy(update={"tflops_per_gpu": plan.expected.tflops_per_gpu / 3})
    assert planned_hardware(plan.model_copy(update={"expected": slower})) is None


def test_a_plan_without_the_memory_of_its_accelerators_shows_none() -> None:
    """That of a CPU has none, and that of a GPU which the table of accelerators lacks."""
    platform = PlatformConfig.model_validate({"accelerators": {"novel-gpu": {}, "cpu": {"platform": "cpu"}}})
    for name in ("novel-gpu", "cpu"):
        spec = {"recipe": "tiny-gpt", "accelerator": {"type": name, "count": 8}, "data": {"mockData": True}}
        plan = admit("run", parse_spec(spec), platform, load()).plan
        assert plan.memory_per_gpu is not None
        assert plan.memory_per_gpu.capacity is None
        assert planned_hardware(plan) is None
    assert planned_hardware(None) is None


def test_a_recipe_that_cannot_be_planned_shows_why(page: TestClient, runs: ExampleRuns) -> None:
    recipe = training_run("broken")
    recipe["spec"]["recipe"] = HOSTILE
    text = text_of(page, add(runs, recipe) + "/recipe")
    assert "Not compared: spec.recipe" in text
    assert "<script>alert" not in text


def test_text_of_statuses_and_logs_is_escaped_everywhere(page: TestClient, runs: ExampleRuns) -> None:
    recipe = training_run("hostile")
    status = recipe["status"]
    status["phase"] = HOSTILE
    incident = status["recovery"]["history"][0]
    incident |= {"cause": HOSTILE, "kind": HOSTILE, "node": HOSTILE, "pod": HOSTILE, "time": HOSTILE}
    status["recovery"] |= {"lastIncident": incident, "nodesAvoided": [HOSTILE]}
    status["plan"]["notes"] = [HOSTILE]
    status["checkpoint"] |= {"time": HOSTILE, "contract": {HOSTILE: HOSTILE}}
    status["warnings"] = [{"reason": HOSTILE, "message": HOSTILE}]
    status["conditions"][0] |= {"status": "False", "reason": HOSTILE, "message": HOSTILE}
    status["ledger"]["losses"] = [{"category": HOSTILE, "cause": HOSTILE, "node": HOSTILE, "seconds": 9.0}]
    status["ledger"]["seconds"][HOSTILE] = 9.0
    recipe["spec"]["training"][HOSTILE] = HOSTILE
    runs.problem = HOSTILE
    path = add(runs, recipe)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("testkit.example_runs.FAILURE", HOSTILE)
        pages = [text_of(page, each) for each in ("/", path, f"{path}?rank=1")]
    compare = "/compare?a=research/hostile&b=research/llama3-8b-web"
    for text in [
        *pages,
        text_of(page, compare),
        text_of(page, f"{path}/recipe"),
        text_of(page, f"/?text={HOSTILE}"),
    ]:
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "3577" not in text
    assert pages[1].count("&lt;script&gt;alert(1)&lt;/script&gt;") > 12


def test_a_name_in_a_url_is_escaped_in_the_answer(page: TestClient) -> None:
    response = page.get("/runs/research/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert response.status_code == 404
    assert "<script>alert" not in response.text


@pytest.mark.parametrize(
    "field", ["plan", "progress", "checkpoint", "recovery", "ledger", "conditions", "phase"]
)
def test_a_status_without_a_field_is_shown(page: TestClient, runs: ExampleRuns, field: str) -> None:
    recipe = training_run("partial")
    del recipe["status"][field]
    path = add(runs, recipe)
    for each in ("/", path, f"{path}?rank=1", "/compare?a=research/partial&b=research/llama3-8b-web"):
        text_of(page, each)


def test_a_recipe_without_a_status_is_shown(page: TestClient, runs: ExampleRuns) -> None:
    recipe = training_run("new")
    del recipe["status"]
    assert "not reconciled yet" in text_of(page, add(runs, recipe))


def test_values_of_a_wrong_type_cost_only_their_part(page: TestClient, runs: ExampleRuns) -> None:
    recipe = training_run("odd")
    recipe["status"]["progress"]["lmLoss"] = "high"
    recipe["status"]["recovery"]["history"][1] = {"number": "x"}
    assert "61,300 of 100,000" in text_of(page, add(runs, recipe))


def test_every_answer_has_the_security_headers_and_no_inline_script_or_style(page: TestClient) -> None:
    for path in ("/", RUN, f"{RUN}/recipe", "/compare", "/sign-in", "/none", "/static/style.css", "/healthz"):
        response = page.get(path)
        assert {key: response.headers[key] for key in HEADERS} == HEADERS
        assert "<style" not in response.text
        assert " style=" not in response.text
        assert not re.search(r"<script(?! src=\"/static/)", response.text)
        assert not re.search(r"\son\w+=", response.text)
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


def test_pages_refresh_without_scripts_too_until_that_is_paused(page: TestClient) -> None:
    assert '<noscript><meta http-equiv="refresh"' in text_of(page, "/?phase=Training")
    assert 'href="/?phase=Training&amp;refresh=off">Pause' in text_of(page, "/?phase=Training")
    paused = text_of(page, "/?phase=Training&refresh=off")
    assert 'http-equiv="refresh"' not in paused
    assert "<script" not in paused
    assert 'href="/?phase=Training">Resume' in paused


def test_what_a_run_does_not_have_yet_has_its_place_on_a_page_that_stays_open(
    page: TestClient, runs: ExampleRuns
) -> None:
    new = training_run("new") | {"status": {"phase": "Pending"}}
    parts = live_parts(text_of(page, add(runs, new)))
    assert {"comparisons", "ranks", "failure-log", "ledger-table", "refresh-interval"} <= set(parts)
    assert parts == live_parts(text_of(page, RUN))


def test_the_page_answers_no_method_that_could_change_something(page: TestClient) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert page.request(method, RUN).status_code == 405


def test_runs_that_are_outdated_have_a_warning(page: TestClient, runs: ExampleRuns) -> None:
    runs.problem = "403 Forbidden: cannot list"
    assert "may be outdated: 403 Forbidden: cannot list" in text_of(page, "/")


def test_a_run_that_is_not_in_an_incomplete_list_is_not_reported_as_missing(
    page: TestClient, runs: ExampleRuns
) -> None:
    assert page.get("/runs/research/new").status_code == 404
    runs.problem = "the API server does not respond"
    answer = page.get("/runs/research/new")
    text = "Whether there is a run research/new is not known: the API server does not respond."
    assert (answer.status_code, text in answer.text) == (503, True)
    assert page.get(RUN).status_code == 200
