"""The web page's example runs served to a browser, and what is wrong with its pages there.

Every function that checks returns the problems that it finds, as sentences.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from megatron_operator.ui.access import KeyAccess
from megatron_operator.ui.app import Settings, application
from megatron_operator.ui.journals import Journals
from megatron_operator.ui.published import PublishedRecipes
from megatron_operator.ui.server import listen, server
from starlette.types import ASGIApp, Receive, Scope, Send

from testkit.chromium import Tab
from testkit.example_archive import DELETED, example_archive
from testkit.example_journals import write_run
from testkit.example_runs import NOW, ExampleRuns, example_runs, training_run

RUN: Final = "/runs/research/llama3-8b-web"
COMPARED: Final = ("research/llama3-8b-web", "teaching/llama3-8b-code")
COMPARE: Final = f"/compare?a={COMPARED[0]}&b={COMPARED[1]}"
DESKTOP, PHONE = (1280, 900), (390, 844)
"""Widths and heights of windows in CSS pixels."""
PAGES: Final = (
    "/", RUN, f"{RUN}/recipe", COMPARE, "/ledger", "/archive", DELETED, f"{DELETED}/recipe", "/sign-in",
    "/runs/research/missing", "/journals",
)  # fmt: skip
LISTS: Final = ("/", "/archive", "/journals")
"""Pages whose runs the keyboard alone opens."""
_TABS: Final = 60
"""Presses of Tab within which a control is reached."""
_CONTRAST: Final = """
(() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = rgb(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0] : [255, 255, 255];
  };
  const found = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    const color = rgb(node.closest("svg") ? style.fill : style.color);
    const [one, other] = [luminance(color), luminance(behind(node))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) found.add(`${node.tagName}.${node.getAttribute("class")} ${ratio.toFixed(2)}`);
  }
  return [...found];
})()
"""
_FOCUS: Final = """
(() => {
  const at = document.activeElement;
  return [at.getAttribute("href") || at.id || at.tagName.toLowerCase(), getComputedStyle(at).outlineStyle];
})()
"""


@dataclass(frozen=True, slots=True)
class Served:
    """The page of the example runs, which are signed in."""

    url: str
    runs: ExampleRuns
    journals: tuple[str, ...]
    """Paths of the pages of the runs that are read from volumes."""


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    """The page on a free port of loopback, with an archive and a journal."""
    with tempfile.TemporaryDirectory() as folder:
        archive = await example_archive(Path(folder) / "runs.sqlite")
        journals = Journals([write_run(Path(folder) / "checkpoints" / "llama3-8b", step=10)])
        settings: dict[str, Any] = {"now": lambda: NOW, "archive": archive, "journals": journals}
        runs, access = example_runs(), KeyAccess("example")
        app = application(Settings(runs, access, PublishedRecipes(None, None), **settings))
        listening = listen("127.0.0.1", 0)
        web = server(_signed_in(app, "example"), None)
        serving = asyncio.create_task(web.serve([listening]))
        try:
            paths = [f"/journals/{each.uid}" for each in (await journals.runs("", 0, 100)).runs]
            yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}", runs, tuple(paths))
        finally:
            web.should_exit = True
            await serving
            archive.close()


def _signed_in(app: ASGIApp, key: str) -> ASGIApp:
    """The application for a browser that has signed in."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["headers"] = [*scope["headers"], (b"authorization", f"Bearer {key}".encode())]
        await app(scope, receive, send)

    return call


async def appearance(tab: Tab, url: str, pages: Sequence[str]) -> list[str]:
    """Of these pages at both widths, dark and light: wider than the window, too little contrast, no style."""
    found = []
    for path in pages:
        for width, height in (DESKTOP, PHONE):
            for dark in (False, True):
                await tab.open(url + path, width, height, dark=dark)
                where = f"{path} at {width} px, {'dark' if dark else 'light'}"
                wide = await tab.evaluate("document.scrollingElement.scrollWidth")
                if wide > width:
                    found.append(f"{where}: {wide} px wide")
                found += [f"{where}: contrast of {each}" for each in await tab.evaluate(_CONTRAST)]
                if not await tab.evaluate("document.styleSheets.length && document.title"):
                    found.append(f"{where}: no style sheet or title")
    return found


async def keyboard(tab: Tab, url: str) -> list[str]:
    """Of the keyboard alone: it opens runs, chooses a rank, opens details and compares two runs."""
    found = [f"{path}: {each}" for path in LISTS for each in await _opens_a_run(tab, url + path)]
    found += [f"{RUN}: {each}" for each in await _chooses_a_rank(tab, url)]
    found += [f"{RUN}: {each}" for each in await _opens_details(tab, url)]
    return found + [f"/compare: {each}" for each in await _compares(tab, url)]


async def stays_current(tab: Tab, page: Served) -> list[str]:
    """Of the open page of a run: parts appear and vanish, and the focus stays in one that is replaced."""
    recipe = training_run("later")
    page.runs.recipes["research", "later"] = recipe | {"status": {"phase": "Pending"}}
    await tab.open(f"{page.url}/runs/research/later", *DESKTOP, dark=False)
    page.runs.recipes["research", "later"] = recipe
    found = []
    for part in ("comparisons", "ranks", "failure-log", "ledger-table"):
        if not await _comes(tab, f"document.querySelector('#{part} h2') !== null"):
            found.append(f"{part} does not appear")
    await tab.evaluate("document.querySelector('#notes summary').focus()")
    changed = recipe["status"] | {"plan": recipe["status"]["plan"] | {"notes": ["changed"]}}
    del changed["ledger"]
    page.runs.recipes["research", "later"] = recipe | {"status": changed}
    if not await _comes(tab, "document.querySelector('#ledger-table h2') === null"):
        found.append("ledger-table does not vanish")
    if not await _comes(tab, "document.querySelector('#notes li').textContent === 'changed'"):
        found.append("a part with the focus is not replaced")
    if not await tab.evaluate("document.activeElement.matches('#notes summary')"):
        found.append("the focus is lost")
    return found


async def stops_in_time(tab: Tab, page: Served) -> list[str]:
    """Of the page of an old journal that takes several requests to read: it refreshes until all is read."""
    await tab.open(page.url + page.journals[0], *DESKTOP, dark=False)
    found = []
    if not await tab.evaluate("document.body.textContent.includes('is read so far')"):
        found.append("one request reads all")
    state = "document.getElementById('refresh-state').textContent"
    if not await _comes(tab, f"{state} === 'This page does not change any more.'"):
        found.append("it goes on")
    if await tab.evaluate("document.getElementById('refresh-interval').textContent"):
        found.append("it states an interval although it has stopped")
    return found


async def _opens_a_run(tab: Tab, url: str) -> list[str]:
    await tab.open(url, *DESKTOP, dark=False)
    target, problem = await _reach(tab, "/runs/", "/journals/")
    return [problem] if problem else await _follow(tab, target)


async def _chooses_a_rank(tab: Tab, url: str) -> list[str]:
    await tab.open(f"{url}{RUN}#layout", *DESKTOP, dark=False)
    target, problem = await _reach(tab, f"{RUN}?rank=")
    if problem:
        return [problem]
    found = await _follow(tab, target.partition("#")[0])
    marked = await tab.evaluate("document.querySelectorAll('.rank.chosen').length")
    return found or ([] if marked == 1 else [f"Enter on {target} marks {marked} ranks"])


async def _opens_details(tab: Tab, url: str) -> list[str]:
    await tab.open(f"{url}{RUN}#notes", *DESKTOP, dark=False)
    _, problem = await _reach(tab, "summary")
    if problem:
        return [problem]
    await tab.press("Enter", 13)
    is_open = await tab.evaluate("document.activeElement.parentElement.open")
    return [] if is_open else ["Enter on a summary does not open its details"]


async def _compares(tab: Tab, url: str) -> list[str]:
    await tab.open(f"{url}/compare", *DESKTOP, dark=False)
    for control, text in zip(("a", "b"), COMPARED, strict=True):
        _, problem = await _reach(tab, control)
        if problem:
            return [problem]
        await tab.call("Input.insertText", text=text)
    await tab.press("Enter", 13)
    expected = [text.replace("/", "%2F") for text in COMPARED]
    with contextlib.suppress(TimeoutError):
        await _until(tab, f"location.search === '?a={expected[0]}&b={expected[1]}'")
        return []
    return [f"Enter in the form leads to {await tab.evaluate('location.href')}"]


async def _reach(tab: Tab, *starts: str) -> tuple[str, str]:
    """Press Tab until the focus is on a link, an id or an element that starts so; its name, or a problem."""
    for _ in range(_TABS):
        await tab.press("Tab", 9)
        target, outline = await tab.evaluate(_FOCUS)
        if outline == "none":
            return target, f"the focus on {target} is not visible"
        if target.startswith(starts):
            return target, ""
    return "", f"{_TABS} times Tab does not reach {' or '.join(starts)}"


async def _follow(tab: Tab, target: str) -> list[str]:
    await tab.press("Enter", 13)
    with contextlib.suppress(TimeoutError):
        await _until(tab, f"location.pathname + location.search === {target!r}")
        return []
    return [f"Enter on {target} does not open it"]


async def _comes(tab: Tab, condition: str) -> bool:
    with contextlib.suppress(TimeoutError):
        await _until(tab, condition)
        return True
    return False


async def _until(tab: Tab, condition: str) -> None:
    """Wait for a condition of the page. Raises TimeoutError after 10 s."""
    async with asyncio.timeout(10):
        while not await _holds(tab, condition):
            await asyncio.sleep(0.05)


async def _holds(tab: Tab, condition: str) -> bool:
    try:
        ready = await tab.evaluate(f"document.readyState === 'complete' && {condition}")
    except RuntimeError:  # the page is being replaced
        return False
    return bool(ready)
