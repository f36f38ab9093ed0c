"""The Jobs that import and export weights, as the commands without a cluster show them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megatron_operator.planner import PlannedRun


def conversion_lines(planned: "PlannedRun") -> list[tuple[str, str]]:
    """Label and text of each Job that the operator would run before or after the training."""
    from megatron_operator.lifecycle.conversions import conversion_of
    from megatron_operator.lifecycle.stages import EXPORT, EXPORT_BEST, IMPORT
    from megatron_operator.manifests import convert, object_name

    memory = convert.request(planned.resolved)["requests"]["memory"]
    lines = []
    end = "after the last iteration"
    for label, stage, when in (
        ("import", IMPORT, "before the job"),
        ("export", EXPORT, end),
        ("export best", EXPORT_BEST, end),
    ):
        found = conversion_of(stage, planned.resolved, planned.name)
        if found is not None:
            job = f"Job {object_name(planned.name)}-{stage.role}"
            text = f"{found.source} to {found.path}, by {job} {when}, {memory} of memory, no accelerator"
            if stage is IMPORT and (name := _name_on_hub(planned)) is not None:
                text = f"{name} of the hub is downloaded to {text.replace(' to ', ' and converted to ', 1)}"
            lines.append((label, text))
    return lines


def _name_on_hub(planned: "PlannedRun") -> str | None:
    source = planned.resolved.init.source
    return source.hugging_face.name if source and source.hugging_face else None
