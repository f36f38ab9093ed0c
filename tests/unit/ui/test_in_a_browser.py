"""Every page in a headless Chromium: widths, contrast in dark and light, and the keyboard alone."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from testkit.chromium import BrowserMissingError, Tab, chromium
from testkit.page_checks import PAGES, Served, appearance, keyboard, served, stays_current, stops_in_time


def in_a_browser(check: Callable[[Tab, Served], Awaitable[list[str]]]) -> list[str]:
    async def run() -> list[str]:
        async with served() as page, chromium() as tab:
            return await check(tab, page)

    try:
        return asyncio.run(run())
    except BrowserMissingError as error:
        pytest.skip(str(error))


def test_pages_fit_the_window_and_can_be_read_at_desktop_and_phone_width_dark_and_light() -> None:
    assert not in_a_browser(lambda tab, page: appearance(tab, page.url, [*PAGES, *page.journals]))


def test_the_keyboard_alone_opens_runs_and_details_chooses_a_rank_and_compares() -> None:
    assert not in_a_browser(lambda tab, page: keyboard(tab, page.url))


def test_a_page_that_stays_open_shows_what_appears_and_keeps_the_focus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("megatron_operator.ui.pages.RUN_SECONDS", 1)
    assert not in_a_browser(stays_current)


def test_the_page_of_a_large_journal_refreshes_until_all_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatron_operator.ui.journals.READ_SECONDS", 0.0)
    monkeypatch.setattr("megatron_operator.ui.journal_progress.CHUNK", 32 << 10)
    monkeypatch.setattr("megatron_operator.ui.journal_pages.READING_SECONDS", 1)
    assert not in_a_browser(stops_in_time)
