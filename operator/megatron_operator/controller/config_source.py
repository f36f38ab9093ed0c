"""Reads the platform configuration and the user's catalog from their ConfigMaps."""

import asyncio
import logging
import math
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from megatron_operator import catalog
from megatron_operator.api import platform_validation, yaml_documents
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.platform import Maintenance, PlatformConfig
from megatron_operator.catalog.catalog import Catalog
from megatron_operator.catalog.discovery import with_nodes
from megatron_operator.controller.api_client import ApiClient, ApiError
from megatron_operator.controller.api_resources import CONFIG_MAPS, PRIORITY_CLASSES
from megatron_operator.controller.settings import Settings
from megatron_operator.lifecycle.desired import Config
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.manifests.metadata import digest

log = logging.getLogger(__name__)

PLATFORM_KEY: Final = "platform.yaml"
FRESH: Final = 1.0
"""Seconds for which the ConfigMaps are cached; a thousand recipes at once cause one read."""
RECENT: Final = 15.0
"""Seconds for which reconciles use the cached ConfigMaps: the controller reads them each 5 s, and a reconcile
that waits for a busy API server holds its worker."""
NODES_FRESH: Final = 30.0
CLASS_INTERVAL: Final = 60.0
"""Seconds between two attempts to look for a PriorityClass without the right to."""


def parse_platform(text: str, source: str) -> PlatformConfig:
    """Parse the platform file. Raises InvalidRecipeError with every field that is wrong."""
    try:
        content = yaml_documents.load(text)
        if isinstance(content, Mapping) and "platform" in content:
            message = "is a value of the chart, and this file has the content of it alone"
            fix = "move what is below it to the top of the file"
            raise InvalidRecipeError([FieldError(f"{PLATFORM_KEY}.platform", message, fix)])
        return platform_validation.parse_platform({} if content is None else content, PLATFORM_KEY)
    except yaml_documents.YamlError as error:
        raise InvalidRecipeError([FieldError(PLATFORM_KEY, str(error), f"correct it in {source}")]) from None
    except InvalidRecipeError as invalid:
        raise InvalidRecipeError(
            [FieldError(e.field, e.message, f"{e.fix} (correct it in {source})") for e in invalid.errors]
        ) from None


class PriorityClassError(InvalidRecipeError):
    """The class in `recoveryPriorityClassName` cannot be used; all else of the platform file is valid."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__([FieldError(f"{PLATFORM_KEY}.recoveryPriorityClassName", message, fix)])


class ConfigSource:
    """Reads both ConfigMaps and the labels of nodes, and parses them when they have changed."""

    def __init__(self, api: ApiClient, settings: Settings) -> None:
        self._api = api
        self._settings = settings
        self._lock = asyncio.Lock()
        self._read_at = 0.0
        self._nodes_read_at = 0.0
        self._node_labels: list[dict[str, str]] | None = None
        """None before the first list of nodes: without it the platform has no discovered profiles."""
        self._checked_class: tuple[str | None, str] | None = None
        """Version of the platform file, and the PriorityClass that it names, once that is used."""
        self._check_class_at = 0.0
        self._versions: tuple[str | None, ...] | None = None
        self._parsed: Config | InvalidRecipeError | None = None
        self._config: Config | InvalidRecipeError | None = None
        """What was parsed, or the error of its PriorityClass."""
        self._last_valid: PlatformConfig | None = None
        self.revision = 0
        """Number of changes found; 0 before the first read."""

    async def read(self, since: float = 0.0, age: float = FRESH) -> Config:
        """The configuration, at most `age` seconds old; a missing platform file is an empty one.

        It is not older than `since`, a time.monotonic(). Raises InvalidRecipeError while the platform file is
        invalid, ApiError.
        """
        await self.refresh(since, age)
        if isinstance(self._config, InvalidRecipeError):
            raise self._config
        assert self._config is not None, "a refresh sets the configuration"
        return self._config

    async def valid_platform(self) -> PlatformConfig | None:
        """What holds for runs: the last valid platform file, whatever its PriorityClass.

        None while the file has been invalid since this process began. Raises ApiError.
        """
        await self.refresh(age=RECENT)
        return self._last_valid

    async def maintenance(self) -> Maintenance:
        """What announces maintenance for runs; the default without a valid platform file. Raises ApiError."""
        platform = await self.valid_platform()
        return Maintenance() if platform is None else platform.maintenance

    async def refresh(self, since: float = 0.0, age: float = FRESH) -> None:
        """Read again when the cached configuration is older than `age` or `since`. Raises ApiError.

        All who wait for a read share the next one, however long it takes.
        """
        oldest = max(since, time.monotonic() - age)
        if self._config is None or self._read_at < oldest:
            async with self._lock:
                if self._config is None or self._read_at < oldest:
                    await self._read()

    async def _read(self) -> None:
        began, namespace = time.monotonic(), self._settings.namespace
        platform = await self._api.get(CONFIG_MAPS, namespace, self._settings.platform_config_map)
        recipes = await self._api.get(CONFIG_MAPS, namespace, self._settings.catalog_config_map)
        nodes = await self._read_node_labels()
        labels = digest(sorted(map(sorted, map(dict.items, nodes))))
        versions = (_version(platform), _version(recipes), labels)
        changed = self._parsed is None or versions != self._versions
        if changed:
            try:
                # In a thread: a ConfigMap of a megabyte takes longer than the event loop may be blocked.
                self._parsed = await asyncio.to_thread(self._parse, platform, recipes, nodes)
                self._last_valid = self._parsed.platform
                self._warn_without_rights(self._parsed.platform)
            except InvalidRecipeError as error:
                log.warning("recipes are refused until the platform file is valid: %s", error)
                self._parsed = error
        before = self._config if isinstance(self._config, PriorityClassError) else None
        class_error = await self._check_priority_class(versions[0])
        if changed or str(class_error) != str(before):
            self._config = class_error or self._parsed
            self.revision += 1
        # Last: after an unexpected error the next read tries again.
        self._versions, self._read_at = versions, began

    async def _check_priority_class(self, version: str | None) -> PriorityClassError | None:
        """Why the class for pods that recover cannot be used; None where it can, or none is named.

        Found once for each version of the platform file: what runs is not disturbed where it is deleted.
        """
        assert self._parsed is not None, "the platform file is read first"
        if isinstance(self._parsed, InvalidRecipeError):
            return None
        name, now = self._parsed.platform.recovery_priority_class_name, time.monotonic()
        if name is None or (self._checked_class == (version, name) and now < self._check_class_at):
            return None
        try:
            classes = await self._api.find(PRIORITY_CLASSES, None)
        except ApiError as error:
            if not error.refused:
                raise
            if self._checked_class != (version, name):
                text = "%s: recoveryPriorityClassName: no rights to look whether PriorityClass %s exists"
                log.warning(text, PLATFORM_KEY, name)
            # An upgrade of the chart may have written the platform file before the rights.
            self._checked_class, self._check_class_at = (version, name), now + CLASS_INTERVAL
            return None
        found = next((each for each in classes if each["metadata"]["name"] == name), None)
        if found is None:
            fix = f"create it, or correct the name in {self._config_map}"
            return PriorityClassError(f"there is no PriorityClass {name}", fix)
        others = max((each["value"] for each in classes if each.get("globalDefault")), default=0)
        if found["value"] <= others:
            message = (
                f"PriorityClass {name} has the value {found['value']}, and pods without a class have {others}"
            )
            fix = f"name one with a higher value in {self._config_map}"
            return PriorityClassError(message, fix)
        if found.get("preemptionPolicy") != "Never":
            text = (
                "%s: recoveryPriorityClassName: pods of PriorityClass %s end pods of lower priority, also of "
            )
            text += "runs that train; with preemptionPolicy Never they do not"
            log.warning(text, PLATFORM_KEY, name)
        self._checked_class, self._check_class_at = (version, name), math.inf
        return None

    def _warn_without_rights(self, platform: PlatformConfig) -> None:
        """The chart refuses this at installation; the ConfigMap may be edited later."""
        if platform.bad_nodes.cordon and self._settings.watch_namespaces:
            log.warning(
                "%s: badNodes.cordon is true, but a release with watchNamespaces has no rights on nodes: "
                "runs avoid bad nodes, and none is cordoned",
                PLATFORM_KEY,
            )

    def _parse(self, platform: Object | None, recipes: Object | None, nodes: list[dict[str, str]]) -> Config:
        return Config(with_nodes(self._platform(platform), nodes), _catalog(recipes))

    async def _read_node_labels(self) -> list[dict[str, str]]:
        """Labels that describe accelerators; read seldom because nodes change seldom."""
        if not self._settings.node_discovery:
            return []
        now = time.monotonic()
        if self._node_labels is None or now - self._nodes_read_at >= NODES_FRESH:
            # Before the read: while nodes cannot be listed, the last list counts.
            self._nodes_read_at = now
            self._node_labels = await self._api.node_labels()
        return self._node_labels

    def _platform(self, config_map: Object | None) -> PlatformConfig:
        text = ((config_map or {}).get("data") or {}).get(PLATFORM_KEY, "")
        return parse_platform(text, self._config_map)

    @property
    def _config_map(self) -> str:
        return f"ConfigMap {self._settings.namespace}/{self._settings.platform_config_map}"


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
