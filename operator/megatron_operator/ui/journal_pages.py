"""The pages of journals: the list, and one of them."""

from collections.abc import Callable
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from megatron_operator.ui import journal_views, run_list, views
from megatron_operator.ui.journals import Journals
from megatron_operator.ui.pages import RUN_SECONDS, Pages, number_of
from megatron_operator.ui.sign_in import SignIn

READING_SECONDS: Final = 2
"""Seconds between two refreshes while a progress file is not read to its end."""
LIVE_SECONDS: Final = 3600.0
"""A journal whose last iteration is older does not change any more, so its page is not refreshed."""


class JournalPages:
    """Handlers of requests for pages of journals."""

    def __init__(self, journals: Journals, pages: Pages, sign_in: SignIn, now: Callable[[], float]) -> None:
        self._journals = journals
        self._pages = pages
        self._sign_in = sign_in
        self._now = now

    async def journals(self, request: Request) -> Response:
        """The list of journals."""
        viewer = await self._sign_in.viewer(request)
        asked, size = request.query_params, run_list.PAGE_SIZE
        number = max(1, number_of(asked.get("page"), 1))
        found = await self._journals.runs(asked.get("text", ""), (number - 1) * size, size)
        rows = [journal_views.journal_row(each) for each in found.runs]
        values = {"page": number, "pages": max(1, -(-found.total // size)), "total": found.total}
        return self._pages.page(
            request, "journals.html", viewer, None, rows=rows, asked=asked, problems=found.problems, **values
        )

    async def journal(self, request: Request) -> Response:
        """One journal. Raises HTTPException 404."""
        viewer = await self._sign_in.viewer(request)
        run = await self._journals.run(request.path_params["uid"])
        course = None if run is None else await self._journals.course(run)
        if run is None or course is None:
            raise HTTPException(404, "There is no such journal any more; its directory may be gone.")
        incidents = journal_views.incidents(run)
        live = self._now() - run.until < LIVE_SECONDS
        reading = course.share < 1.0 and course.problem is None
        seconds = READING_SECONDS if reading else RUN_SECONDS if live else None
        return self._pages.page(
            request,
            "journal.html",
            viewer,
            seconds,
            run=run,
            course=course,
            facts=journal_views.facts(run, course),
            charts=views.charts([("", course.points)], incidents),
            interruptions=views.interruptions(views.status_of(run.recipe)),
            hangs=await self._journals.hangs(run),
            incident_note=journal_views.incident_note(run),
            events=journal_views.events(run, course),
            checkpoints=journal_views.checkpoints(course),
            reference=f"{run.folder}/{run.name}@{run.uid}",
        )
