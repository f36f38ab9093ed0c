"""Bounds of the values of a recipe: at least ten times what the catalog and real clusters use.

Without them a number decides how long the planner works, and a text how large a status grows.
"""

from typing import Annotated, Final

from pydantic import Field

MOST_LAYERS: Final = 10_000
LONGEST_NAME: Final = 253
"""Characters of the name of an object."""
LONGEST_TEXT: Final = 4096
"""Characters of any other text."""

Layers = Annotated[int, Field(ge=1, le=MOST_LAYERS)]
"""Layers, experts, and parts of them; the catalog has up to 384."""
Width = Annotated[int, Field(ge=1, le=10_000_000)]
"""Elements of a dimension: hidden size, vocabulary; the catalog has up to 256,000."""
Accelerators = Annotated[int, Field(ge=1, le=1_000_000)]
"""Accelerators of a run, and sizes of parallel groups; the catalog has up to 6,144."""
Rank = Annotated[int, Field(ge=0, le=999_999)]
"""A rank of a run."""
PerNode = Annotated[int, Field(ge=1, le=1024)]
"""Accelerators of one pod."""
Positions = Annotated[int, Field(ge=1, le=100_000_000)]
"""Tokens of a sample; the catalog has up to 200,000."""
Batch = Annotated[int, Field(ge=1, le=100_000_000)]
"""Samples of a step; the catalog has up to 16,384."""
Iterations = Annotated[int, Field(ge=1, le=10**12)]
Samples = Annotated[int, Field(ge=1, le=10**15)]
Large = Annotated[int, Field(ge=1, le=10**12)]
"""Other numbers."""
Count = Annotated[int, Field(ge=0, le=1_000_000)]
"""How often something may happen, or how many are kept."""
Seconds = Annotated[int, Field(ge=1, le=100_000_000)]
"""Up to three years."""

LARGEST_SETTING: Final = 1_000_000
Positive = Annotated[float, Field(gt=0, le=LARGEST_SETTING)]
"""Factors, rates and epsilons; the catalog has up to 40."""
NonNegative = Annotated[float, Field(ge=0, le=LARGEST_SETTING)]
"""Factors, rates and epsilons where zero disables something."""
Signed = Annotated[float, Field(ge=-LARGEST_SETTING, le=LARGEST_SETTING)]
Fraction = Annotated[float, Field(ge=0, le=1)]
FractionBelowOne = Annotated[float, Field(ge=0, lt=1)]
"""Where all of it would leave nothing: a dropout, a warm-up."""
Weight = Annotated[float, Field(gt=0, le=10**15)]
"""Share in a mix; often a number of tokens."""
Grace = Annotated[int, Field(ge=20, le=86_400)]
"""Seconds from SIGTERM to SIGKILL; the launcher needs 10 of them after the save."""

Name = Annotated[str, Field(max_length=LONGEST_NAME)]
"""Name of an object."""
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
"""Any other text: a path, a pattern of layers."""
