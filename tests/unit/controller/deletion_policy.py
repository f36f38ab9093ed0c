"""An admission policy that refuses to have objects of a run deleted."""

from typing import Any

from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import Resource

from tests.unit.controller.simulated_run import Run

DENIED = 'admission webhook "protect" denied the request'


class Policy:
    """Refuses to have objects of a resource deleted, while it is `active`."""

    def __init__(self, run: Run, resource: Resource) -> None:
        self.active = True
        self._resource = resource
        self._delete = run.api.delete

    async def delete(self, resource: Any, *args: Any, **options: Any) -> None:
        if self.active and resource is self._resource:
            raise ApiError(403, "Forbidden", DENIED)
        await self._delete(resource, *args, **options)
