"""The sources of installed packages, which are read without importing them."""

import importlib.util
from pathlib import Path


def folder(package: str) -> Path:
    """The folder of an installed package."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0])
