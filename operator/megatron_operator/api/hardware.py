"""Names of accelerators: catalog, platform file and planner call each by one name, users by several."""

from typing import Final

ALIASES: Final = {
    "a100-40gb": "a100-40",
    "a100-sxm-40gb": "a100-40",
    "a100-80gb": "a100-80",
    "a100-sxm-80gb": "a100-80",
    "h100": "h100-sxm",
    "h200-sxm": "h200",
    "gb200-nvl72": "gb200",
    "gb300-nvl72": "gb300",
}
"""Another name -> that of published layouts and of the planner's table."""


def canonical(name: str) -> str:
    """The name in published layouts and in the planner's table."""
    return ALIASES.get(name, name)
