"""Templates as responses. Everything that is put into a template is escaped, but for SVG of `charts`."""

from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

from megatron_operator.ui.run_list import utc
from megatron_operator.ui.views import GLYPHS

FOLDER: Final = Path(__file__).parent


class Templates:
    """The templates, compiled once."""

    def __init__(self, *, cluster: bool = True, archive: bool = False, journals: bool = False) -> None:
        """Which sources of runs there are, which the pages then link to."""
        self._environment = Environment(
            loader=FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters["glyph"] = lambda phase: GLYPHS.get(phase, "…")
        self._environment.filters["utc"] = utc
        self._environment.globals["refresh"] = None
        self._environment.globals["viewer"] = None
        self._environment.globals["has_cluster"] = cluster
        self._environment.globals["has_archive"] = archive
        self._environment.globals["has_journals"] = journals
        self._environment.globals["archive_problem"] = None

    def response(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """A page of this template."""
        return HTMLResponse(self._environment.get_template(template).render(values), status)
