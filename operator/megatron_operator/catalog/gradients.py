"""The format in which gradients are summed: one setting of a recipe, for which Megatron has two flags."""

from typing import Any, Final

from megatron_operator.api.diagnostics import Diagnostics

_FIELD: Final = "training.accumulateAllreduceGradsInFp32"
_IN_BF16: Final = "grad-reduce-in-bf16"
_MAIN: Final = "main-grads-dtype"


def complete_sums(merged: dict[str, dict[str, Any]], found: Diagnostics) -> None:
    """Make Megatron's flags follow from `training.accumulateAllreduceGradsInFp32`, where that is set.

    Megatron sums gradients of BF16 in FP32 without a flag, unless `--grad-reduce-in-bf16` or
    `--main-grads-dtype` asks for another format, and those of FP16 in FP16 (`validate_args`). Flags of the
    catalog give way to the field; those of the recipe must not contradict it.
    """
    training, args = merged["training"], merged["megatronArgs"]
    in_fp32 = training.get(_FIELD.removeprefix("training."))
    if in_fp32 is None:
        return
    if not in_fp32 and not (training.get("bf16") or training.get("fp16")):
        message = "false: gradients of FP32 parameters are in FP32"
        found.error(f"spec.{_FIELD}", message, "leave it out, or set bf16: true")
        return
    wanted = not in_fp32 and bool(training.get("bf16"))
    for flag, contradicts, value in (
        (_IN_BF16, args.get(_IN_BF16, wanted) is not wanted, wanted),
        (_MAIN, in_fp32 and args.get(_MAIN, "fp32") != "fp32", "fp32"),
    ):
        path = f"megatronArgs.{flag}"
        if contradicts and found.is_set_by_user(path):
            message = f"{str(in_fp32).lower()} contradicts {path} {str(args[flag]).lower()}"
            found.error(f"spec.{_FIELD}", message, "set one of the two")
        elif contradicts or flag == _IN_BF16:
            args[flag] = value
            found.origin(path, "recipe")
