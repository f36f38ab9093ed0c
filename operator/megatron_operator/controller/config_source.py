"""The platform file and the user's catalog, read live from their ConfigMaps."""

import asyncio
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml
from pydantic import ValidationError

from megatron_operator import catalog
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.catalog.catalog import Catalog
from megatron_operator.catalog.discovery import with_nodes
from megatron_operator.controller.api_client import CONFIG_MAPS, Cluster, Object
from megatron_operator.controller.settings import Settings
from megatron_operator.manifests.metadata import digest

PLATFORM_KEY: Final = "platform.yaml"
FRESH: Final = 1.0
"""Seconds for which what was read is taken as it is; a thousand recipes at once ask once."""
NODES_FRESH: Final = 30.0


@dataclass(frozen=True, slots=True)
class Known:
    """What recipes are resolved against."""

    platform: PlatformConfig
    catalog: Catalog


def parse_platform(text: str, source: str) -> PlatformConfig:
    """The platform file. Raises InvalidRecipeError with every field that is wrong."""
    fix = f"correct it in {source}"
    try:
        return PlatformConfig.model_validate(yaml.safe_load(text) or {})
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise InvalidRecipeError([FieldError(PLATFORM_KEY, f"is not YAML: {problem}", fix)]) from None
    except ValidationError as error:
        raise InvalidRecipeError(
            [FieldError(".".join([PLATFORM_KEY, *map(str, e["loc"])]), e["msg"], fix) for e in error.errors()]
        ) from None


class Sources:
    """Reads both ConfigMaps and the nodes' labels when asked, parses them when they changed."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._lock = asyncio.Lock()
        self._read_at = 0.0
        self._nodes_read_at = -NODES_FRESH
        self._node_labels: list[dict[str, str]] = []
        self._versions: tuple[str | None, ...] | None = None
        self._known: Known | InvalidRecipeError | None = None
        self.revision = 0
        """Counts what was found changed; 0 before the first reading."""

    async def known(self) -> Known:
        """Raises InvalidRecipeError while the platform file is broken; a missing one is an empty one."""
        await self.refresh()
        if isinstance(self._known, InvalidRecipeError):
            raise self._known
        assert self._known is not None, "a refresh leaves something known"
        return self._known

    async def refresh(self) -> None:
        """Read again when it is time."""
        async with self._lock:
            if self._known is not None and time.monotonic() - self._read_at < FRESH:
                return
            namespace = self._settings.namespace
            platform = await self._cluster.get(CONFIG_MAPS, namespace, self._settings.platform_config_map)
            recipes = await self._cluster.get(CONFIG_MAPS, namespace, self._settings.catalog_config_map)
            self._read_at = time.monotonic()
            nodes = await self._nodes()
            versions = (
                _version(platform),
                _version(recipes),
                digest(sorted(map(sorted, map(dict.items, nodes)))),
            )
            if self._known is not None and versions == self._versions:
                return
            self._versions = versions
            try:
                described = with_nodes(self._platform(platform), nodes)
                self._known = Known(described, _catalog(recipes))
            except InvalidRecipeError as refused:
                self._known = refused
            self.revision += 1

    async def _nodes(self) -> list[dict[str, str]]:
        """Labels that tell of accelerators; read seldom, for nodes come and go slowly."""
        now = time.monotonic()
        if self._settings.node_discovery and now - self._nodes_read_at >= NODES_FRESH:
            self._nodes_read_at = now
            self._node_labels = await self._cluster.node_labels()
        return self._node_labels

    def _platform(self, config_map: Object | None) -> PlatformConfig:
        text = ((config_map or {}).get("data") or {}).get(PLATFORM_KEY, "")
        source = f"ConfigMap {self._settings.namespace}/{self._settings.platform_config_map}"
        return parse_platform(text, source)


def _version(config_map: Object | None) -> str | None:
    return config_map["metadata"]["resourceVersion"] if config_map else None


def _catalog(config_map: Object | None) -> Catalog:
    files = (config_map or {}).get("data") or {}
    if not files:
        return catalog.load()
    folder = Path(tempfile.mkdtemp(prefix="megatron-catalog-"))
    try:
        for name, text in files.items():
            (folder / name).write_text(text)
        return catalog.load(folder)
    finally:
        shutil.rmtree(folder)
