"""Panels and queries of the Grafana dashboard; scripts/dashboard.py gives them their form and place."""

from dataclasses import dataclass
from typing import Final

OPERATOR_RUN: Final = 'namespace=~"$namespace", name=~"$run"'
"""Selects runs in the operator's series."""
TRAINER_RUN: Final = 'namespace=~"$namespace", recipe=~"$run"'
"""Selects runs in the series of trainer pods, to which the PodMonitor adds `recipe`."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel with its queries, each with its legend."""

    title: str
    queries: tuple[tuple[str, str], ...]
    meaning: str
    unit: str = "short"
    width: int = 8
    kind: str = "timeseries"
    stacked: bool = False
    minimum: float | None = None
    maximum: float | None = None
    decimals: int | None = None
    """Digits after the point; 0 for counts, whose axis then has whole numbers only."""
    table: bool = False
    """Show the newest values in a table beside the chart: some are too small to be seen in it."""


def of_run(metric: str, more: str = "") -> str:
    """A value of the operator for each run; a former leader may still be scraped."""
    return f"max by (namespace, name) ({metric}{{{OPERATOR_RUN}{more}}})"


def of_run_by(metric: str, label: str, more: str = "") -> str:
    """The same for each value of one more label."""
    return f"max by (namespace, name, {label}) ({metric}{{{OPERATOR_RUN}{more}}})"


def of_pods(metric: str) -> str:
    """A value of the run that any of its pods reports."""
    return f"max by (namespace, recipe) ({metric}{{{TRAINER_RUN}}})"


def planned(metric: str) -> str:
    """A value of the operator for each run, with the labels of the pods' series."""
    renamed = f'label_replace({metric}{{{OPERATOR_RUN}}}, "recipe", "$1", "name", "(.+)")'
    return f"max by (namespace, recipe) ({renamed})"


def quantile(share: float, histogram: str) -> str:
    """A quantile of a histogram over all replicas."""
    return f"histogram_quantile({share}, sum by (le) (rate({histogram}_bucket[$__rate_interval])))"


GPU_HOURS: Final = "suffix:GPU-h"
"""Not `h`: Grafana makes days and weeks of hours."""
LOST: Final = ', category!~"train|save|evaluate"'
NAMED: Final = "{{namespace}}/{{name}}"
OF_PODS: Final = "{{namespace}}/{{recipe}}"
GPU_SECONDS: Final = "megatron_recipe_accelerator_time_seconds"
OF_WEEK: Final = of_run_by("megatron_recipe_week_accelerator_seconds", "use")
OF_WEEK_DELETED: Final = (
    'max by (namespace, use) (megatron_deleted_runs_week_accelerator_seconds{namespace=~"$namespace"})'
)
PRICE: Final = of_run("megatron_recipe_price_per_gpu_hour")
COST_DELETED: Final = 'max by (namespace) (megatron_deleted_runs_week_cost{namespace=~"$namespace"})'
PEAK: Final = planned("megatron_recipe_peak_tflops_per_gpu")
PLANNED_STEP: Final = planned("megatron_recipe_planned_step_seconds")
GOODPUT: Final = of_run("megatron_recipe_goodput")
HELD: Final = of_run("megatron_recipe_accelerators")
ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Fleet": (
        Panel(
            "Runs by phase",
            ((f"count by (phase) ({of_run_by('megatron_recipe_phase', 'phase')} == 1)", "{{phase}}"),),
            "Number of runs in each phase.",
            width=10,
            stacked=True,
            minimum=0,
            decimals=0,
        ),
        Panel(
            "Accelerators",
            ((f"sum({HELD})", "held or waited for"),),
            "Accelerators of all runs that are not over, suspended or refused.",
            width=4,
            kind="stat",
            decimals=0,
        ),
        Panel(
            "Goodput of the fleet",
            ((f"sum({GOODPUT} * {HELD}) / sum({HELD} and {GOODPUT})", "goodput"),),
            "Goodput of the runs that hold accelerators, weighted by their number.",
            unit="percentunit",
            decimals=1,
            width=4,
            kind="stat",
        ),
        Panel(
            "Accelerators by run",
            ((f"{HELD} > 0", NAMED),),
            "Accelerators that a run holds or waits for.",
            width=6,
            stacked=True,
            minimum=0,
            decimals=0,
        ),
    ),
    "Training": (
        Panel(
            "Tokens per second",
            ((of_pods("megatron_tokens_per_second"), OF_PODS),),
            "Of the whole run.",
            minimum=0,
        ),
        Panel(
            "MFU",
            (
                (
                    f"{of_pods('megatron_tflops_per_gpu')} / {PEAK}",
                    OF_PODS,
                ),
            ),
            "Model FLOP/s by Megatron's formula over the accelerator's peak in the training precision.",
            unit="percentunit",
            minimum=0,
        ),
        Panel(
            "Iterations done",
            ((f"{of_pods('megatron_iteration')} / {of_pods('megatron_train_iterations')}", OF_PODS),),
            "Share of the run's iterations. A step down is a restart from a checkpoint.",
            unit="percentunit",
            minimum=0,
            maximum=1,
        ),
        Panel("Loss", ((of_pods("megatron_lm_loss"), OF_PODS),), "Of the last iteration."),
        Panel(
            "Validation loss",
            (
                (of_pods("megatron_validation_loss"), OF_PODS),
                (of_pods("megatron_best_validation_loss"), f"{OF_PODS} lowest"),
            ),
            "Of the last evaluation, and the lowest one.",
        ),
        Panel(
            "Learning rate",
            ((of_pods("megatron_learning_rate"), OF_PODS),),
            "Of the last iteration.",
            unit="sci",
        ),
        Panel(
            "Step time against the plan",
            (
                (of_pods("megatron_step_seconds"), OF_PODS),
                (PLANNED_STEP, f"{OF_PODS} planned"),
            ),
            "Duration of the last iteration and the planner's estimate.",
            unit="s",
            minimum=0,
        ),
        Panel(
            "Step time over the plan's",
            (
                (
                    f"{of_pods('megatron_step_seconds')} / {PLANNED_STEP}",
                    OF_PODS,
                ),
            ),
            "Above 1 the run is slower than planned.",
            unit="none",
            minimum=0,
        ),
        Panel(
            "Age of the newest checkpoint",
            ((f"time() - {of_pods('megatron_checkpoint_timestamp_seconds')}", OF_PODS),),
            "An interruption now repeats at most this much.",
            unit="s",
            minimum=0,
        ),
    ),
    "Interruptions and goodput": (
        Panel(
            "Interruptions",
            ((f"sum by (namespace, name) ({of_run_by('megatron_recipe_restarts', 'kind')})", NAMED),),
            "Since the beginning of each run.",
            minimum=0,
            decimals=0,
        ),
        Panel(
            "Interruptions by kind",
            ((f"sum by (kind) ({of_run_by('megatron_recipe_restarts', 'kind')}) > 0", "{{kind}}"),),
            "Of all chosen runs since their beginning. Empty without any.",
            stacked=True,
            minimum=0,
            decimals=0,
        ),
        Panel(
            "Goodput",
            ((GOODPUT, NAMED),),
            "Of each run since its first start.",
            unit="percentunit",
            maximum=1,
        ),
        Panel(
            "Seconds lost to interruptions",
            ((f"sum by (phase) ({of_run_by('megatron_recipe_lost_seconds', 'phase')}) > 0", "{{phase}}"),),
            "Of all chosen runs, by phase of the recovery. Empty without any.",
            unit="s",
            stacked=True,
            minimum=0,
        ),
        Panel(
            "Repeated iterations",
            ((of_run("megatron_recipe_lost_iterations"), NAMED),),
            "Of each run.",
            minimum=0,
            decimals=0,
        ),
        Panel(
            "Avoided nodes",
            ((f"{of_run('megatron_recipe_nodes_avoided')} > 0", NAMED),),
            "Nodes that a run avoids. Empty without any.",
            minimum=0,
            decimals=0,
        ),
    ),
    "Ledger of time": (
        Panel(
            "GPU-hours by category",
            ((f"sum by (category) ({of_run_by(GPU_SECONDS, 'category')}) / 3600 > 0", "{{category}}"),),
            "Of all chosen runs since their creation, as `megatron ledger` has them.",
            unit=GPU_HOURS,
            width=12,
            table=True,
            stacked=True,
            minimum=0,
        ),
        Panel(
            "Lost GPU-hours by run",
            ((f"sum by (namespace, name) ({of_run_by(GPU_SECONDS, 'category', LOST)}) / 3600", NAMED),),
            "All categories but train, save and evaluate.",
            unit=GPU_HOURS,
            width=6,
            stacked=True,
            minimum=0,
        ),
        Panel(
            "Time by category",
            (
                (
                    f"sum by (category) ({of_run_by('megatron_recipe_time_seconds', 'category')}) > 0",
                    "{{category}}",
                ),
            ),
            "Of all chosen runs, whether or not they held accelerators.",
            unit="s",
            width=6,
            kind="piechart",
        ),
        Panel(
            "GPU-hours of this week by namespace",
            ((f"sum by (namespace) ({OF_WEEK} or {OF_WEEK_DELETED}) / 3600", "{{namespace}}"),),
            "Since Monday, 00:00 UTC, with those of runs that were deleted, of whichever name.",
            unit=GPU_HOURS,
            width=12,
            table=True,
            stacked=True,
            minimum=0,
        ),
        Panel(
            "Cost of this week by namespace",
            (
                (
                    f"sum by (namespace) ({OF_WEEK} * on (namespace, name) group_left {PRICE} / 3600 "
                    f"or {COST_DELETED})",
                    "{{namespace}}",
                ),
            ),
            "The same in the platform's currency. Empty where no accelerator has a `pricePerGpuHour`.",
            width=12,
            table=True,
            stacked=True,
            minimum=0,
        ),
    ),
    "Operator": (
        Panel(
            "Duration of a reconcile",
            (
                (quantile(0.5, "megatron_operator_reconcile_seconds"), "median"),
                (quantile(0.99, "megatron_operator_reconcile_seconds"), "99th percentile"),
            ),
            "Over all recipes.",
            unit="s",
            minimum=0,
        ),
        Panel(
            "Reconciles per second",
            (
                (
                    "sum by (outcome) (rate(megatron_operator_reconciles_total[$__rate_interval]))",
                    "{{outcome}}",
                ),
            ),
            "By outcome.",
            unit="ops",
            minimum=0,
        ),
        Panel(
            "Queue",
            (("max(megatron_operator_queue_length)", "waiting"),),
            "Recipes that are due for a reconcile and wait for a worker.",
            minimum=0,
            decimals=0,
        ),
        Panel(
            "API requests per second",
            (
                (
                    "sum by (method, plural) (rate(megatron_operator_api_requests_total[$__rate_interval]))",
                    "{{method}} {{plural}}",
                ),
            ),
            "Requests to the API server but for watches.",
            unit="reqps",
            stacked=True,
            minimum=0,
        ),
        Panel(
            "Failed API requests per second",
            (
                (
                    "sum by (method, plural, code) "
                    '(rate(megatron_operator_api_requests_total{code!~"2.."}[$__rate_interval]))',
                    "{{code}} {{method}} {{plural}}",
                ),
            ),
            "404 and 409 are normal: an object does not exist yet, or has changed. Empty without any.",
            unit="reqps",
            minimum=0,
        ),
        Panel(
            "Lag of the event loop",
            ((quantile(0.99, "megatron_operator_event_loop_lag_seconds"), "99th percentile"),),
            "Above 0.05 s something blocks it.",
            unit="s",
            minimum=0,
        ),
        Panel(
            "Stale objects in an hour",
            (("sum by (plural) (increase(megatron_operator_stale_objects_total[1h]))", "{{plural}}"),),
            "Objects whose change no watch delivered. They were read again.",
            minimum=0,
        ),
        Panel(
            "Events not posted in an hour",
            (("sum(increase(megatron_operator_events_dropped_total[1h]))", "dropped"),),
            "Because their recipe posts too many.",
            minimum=0,
        ),
        Panel(
            "Leaders",
            (("sum(megatron_operator_leader)", "leaders"),),
            "1 in a healthy installation; the other replicas stand by.",
            minimum=0,
            maximum=2,
            decimals=0,
        ),
    ),
}
INTERRUPTIONS: Final = (
    "sum by (namespace, name, kind) "
    f"(changes(megatron_recipe_restarts{{{OPERATOR_RUN}}}[$__rate_interval])) > 0"
)
"""Query of the marks in all panels."""
