"""Names of accelerators: users have several for each, catalog and planner one."""

from typing import Final

ALIASES: Final = {
    "a100-40gb": "a100-40",
    "a100-sxm-40gb": "a100-40",
    "a100-80gb": "a100-80",
    "a100-sxm-80gb": "a100-80",
    "a800": "a800-80",
    "a800-80gb": "a800-80",
    "h100": "h100-sxm",
    "h20-96gb": "h20",
    "h800-sxm": "h800",
    "h200-sxm": "h200",
    "gb200-nvl72": "gb200",
    "gb300-nvl72": "gb300",
}
"""Alternative name -> canonical name."""


def canonical(name: str) -> str:
    """The name that published layouts and the planner's table use."""
    return ALIASES.get(name, name)
