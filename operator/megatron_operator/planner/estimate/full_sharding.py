"""Memory of Megatron FSDP: a rank's part of the states, and what is whole for a while. All sizes in bytes.

Source: `MegatronFSDP`, `AllGatherPipeline` and `GradReducePipeline` of megatron-core 0.19.2 with the strategy
`optim_grads_params`, its default. A unit is a transformer layer; embedding and output are in none, and stay
whole for a step. No run on GPUs was measured.
"""

from dataclasses import dataclass
from typing import Final

from megatron_operator.planner.estimate.workload import Numerics

PREFETCHED: Final = 500_000_000
"""Parameters of units that are gathered ahead of the one that is computed."""
REDUCED: Final = 1_000_000_000
"""Parameters whose gradients may wait for their reduction."""
_MAIN_WEIGHT: Final = 4


@dataclass(frozen=True, slots=True)
class FullSharding:
    """States of `parameters` in units and `outside` of them, in `ranks` parts. `unit`: the largest one's."""

    numerics: Numerics
    parameters: float
    outside: float
    unit: float
    ranks: int

    @property
    def _all(self) -> float:
        return self.parameters + self.outside

    @property
    def weights(self) -> float:
        """The part, and whole: what is in no unit, the unit that is computed, and those ahead of it.

        One unit more is gathered where those ahead are fewer parameters than the limit.
        """
        ahead = max(PREFETCHED, self.unit) + self.unit
        whole = min(self._all, self.outside + self.unit + ahead)
        return self.numerics.weight * (self._all / self.ranks + whole)

    @property
    def gradients(self) -> float:
        """The part, and whole: those of the unit that is computed, and those that wait."""
        whole = min(self._all, self.unit + max(REDUCED, 2 * self.unit))
        return self.numerics.gradient * (self._all / self.ranks + whole)

    @property
    def optimizer(self) -> float:
        """The part. A main weight is kept beside an FP32 weight too."""
        main = _MAIN_WEIGHT if self.numerics.weight == _MAIN_WEIGHT else 0
        return (self.numerics.optimizer + main) * self._all / self.ranks

    @property
    def before_sharding(self) -> float:
        """What is there beside the parts when the model is built: all its weights."""
        return self.numerics.weight * self._all

    @property
    def beside(self) -> float:
        """What of weights and gradients a step has beside the parts."""
        n = self.numerics
        return self.weights + self.gradients - (n.weight + n.gradient) * self._all / self.ranks
