"""Cordons nodes whose hardware failed, where the platform asks for it."""

import logging

from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import BadNodes
from megatron_operator.controller.api_client import ApiClient, ApiError
from megatron_operator.controller.config_source import ConfigSource
from megatron_operator.lifecycle.status_builder import StatusBuilder

log = logging.getLogger(__name__)


class Cordoner:
    """Marks nodes as unschedulable."""

    def __init__(self, api: ApiClient, config: ConfigSource) -> None:
        self._api = api
        self._config = config

    async def rules(self, status: StatusBuilder) -> BadNodes:
        """The platform's rules for bad nodes; the defaults, which cordon none, while the file is invalid."""
        try:
            return (await self._config.read()).platform.bad_nodes
        except InvalidRecipeError as error:
            log.warning("%s: the defaults of platform.badNodes apply: %s", status.key, error)
            return BadNodes()

    async def cordon(self, status: StatusBuilder, nodes: tuple[str, ...], rules: BadNodes) -> None:
        """Cordon nodes before the status records that the run avoids them."""
        for node in nodes if rules.cordon else ():
            try:
                await self._api.cordon(node)
            except ApiError as error:
                if not error.not_found and not error.refused:
                    raise
                log.warning("%s: node %s not cordoned: %s", status.key, node, error)
