"""Names of accelerators: users have several for each, catalog and planner one."""

import re
from typing import Final

ALIASES: Final = {
    "a100-40gb": "a100-40",
    "a100-sxm-40gb": "a100-40",
    "a100-80gb": "a100-80",
    "a100-sxm-80gb": "a100-80",
    "a800": "a800-80",
    "a800-80gb": "a800-80",
    "h100": "h100-sxm",
    "h100-80gb": "h100-sxm",
    "h100-80gb-hbm3": "h100-sxm",
    "h100-sxm-80gb": "h100-sxm",
    "h100-sxm5": "h100-sxm",
    "h20-96gb": "h20",
    "h800-sxm": "h800",
    "h200-sxm": "h200",
    "gb200-nvl72": "gb200",
    "gb300-nvl72": "gb300",
    "rtx-pro-6000-blackwell": "rtx-pro-6000",
}
"""Alternative name -> canonical name."""


def canonical(name: str) -> str:
    """The name that published layouts and the planner's table use."""
    return ALIASES.get(name, name)


_WITHOUT_CUDA: Final = re.compile(
    r"(amd-|intel-|aws-|google-)?(mi[1-9][0-9]{2}[a-z]?|gaudi-?[0-9]?|tpu.*|trn[0-9].*|trainium.*)"
)
"""Accelerators of other vendors, by the names that people give them."""


def without_cuda(name: str) -> str | None:
    """Why the trainer cannot run on an accelerator of this name; None where the name shows no reason."""
    if not _WITHOUT_CUDA.fullmatch(name.lower()):
        return None
    return "is not an NVIDIA GPU, and the trainer images have the CUDA builds of torch and Transformer Engine"
