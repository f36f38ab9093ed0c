"""Recommendations of the built-in catalog, made once for all tests that ask for the same."""

from functools import cache

from megatron_operator import catalog
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.planner.candidates import Query
from megatron_operator.planner.recommend import Recommendation, recommend

PLATFORM = PlatformConfig.model_validate(
    {"accelerators": {"h100-sxm": {}, "a100-80": {}}, "image": "trainer"}
)
LIBRARY = catalog.load()


@cache
def choices(
    model: str | None,
    gpus: int,
    accelerator: str | None = "h100-sxm",
    mode: str = "pretrain",
    seq: int | None = None,
) -> list[Recommendation]:
    return recommend(Query(model, gpus, accelerator, mode, seq), PLATFORM, LIBRARY)
