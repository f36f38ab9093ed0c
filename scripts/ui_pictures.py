"""Draws docs/ui-*.png from the example runs, and checks the page in a browser: `make ui-pictures`.

Needs a Chromium on PATH. Exits with 1 where a page is wider than the window, a script or style is refused, or
text has too little contrast; the keyboard alone opens a run.
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from megatron_operator.ui.access import KeyAccess
from megatron_operator.ui.app import Settings, application
from megatron_operator.ui.archive import Archive
from megatron_operator.ui.journals import Journals
from megatron_operator.ui.published import PublishedRecipes
from megatron_operator.ui.server import listen, server
from starlette.types import ASGIApp, Receive, Scope, Send

from testkit.chromium import BrowserMissingError, Tab, chromium
from testkit.example_archive import DELETED, example_archive
from testkit.example_journals import write_run
from testkit.example_runs import NOW, example_runs

DOCS: Final = Path(__file__).parents[1] / "docs"
RUN: Final = "/runs/research/llama3-8b-web"
COMPARE: Final = "/compare?a=research/llama3-8b-web&b=teaching/llama3-8b-code"
DESKTOP, PHONE = (1280, 900), (390, 844)
PICTURES: Final = (
    ("ui-runs.png", "/", DESKTOP, False),
    ("ui-run.png", RUN, (1280, 1100), False),
    ("ui-layout.png", f"{RUN}?rank=25#layout", (1280, 900), True),
    ("ui-phone.png", RUN, PHONE, True),
    ("ui-archive.png", "/archive", (1280, 500), False),
    ("ui-deleted.png", DELETED, (1280, 1100), True),
)
"""File, path, window, dark."""
PAGES: Final = (
    "/", RUN, f"{RUN}/recipe", COMPARE, "/ledger", "/archive", DELETED, f"{DELETED}/recipe", "/sign-in",
    "/runs/research/missing", "/journals",
)  # fmt: skip
LISTS: Final = ("/", "/archive", "/journals")
"""Pages whose runs the keyboard alone opens."""
CONTRAST: Final = """
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


def signed_in(app: ASGIApp, key: str) -> ASGIApp:
    """The application for a browser that has signed in."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["headers"] = [*scope["headers"], (b"authorization", f"Bearer {key}".encode())]
        await app(scope, receive, send)

    return call


async def check(tab: Tab, url: str, pages: Sequence[str]) -> list[str]:
    """What is wrong with these pages at both widths, dark and light, and with the keyboard in the lists."""
    found = []
    for path in pages:
        for width, height in (DESKTOP, PHONE):
            for dark in (False, True):
                await tab.open(url + path, width, height, dark=dark)
                where = f"{path} at {width} px, {'dark' if dark else 'light'}"
                wide = await tab.evaluate("document.scrollingElement.scrollWidth")
                if wide > width:
                    found.append(f"{where}: {wide} px wide")
                found += [f"{where}: contrast of {each}" for each in await tab.evaluate(CONTRAST)]
                if not await tab.evaluate("document.styleSheets.length && document.title"):
                    found.append(f"{where}: no style sheet or title")
    for path in LISTS:
        found += [f"{path}: {each}" for each in await keyboard(tab, url + path)]
    return found


async def keyboard(tab: Tab, url: str) -> list[str]:
    """What is wrong with using the keyboard alone: it opens a run, and each focus is visible."""
    await tab.open(url, *DESKTOP, dark=False)
    focus = "(() => { const at = document.activeElement; return [at.getAttribute('href') || '',"
    focus += " getComputedStyle(at).outlineStyle]; })()"
    for _ in range(40):
        await tab.press("Tab", 9)
        target, outline = await tab.evaluate(focus)
        if outline == "none":
            return [f"the focus on {target or 'a control'} is not visible"]
        if target.startswith(("/runs/", "/journals/")):
            await tab.press("Enter", 13)
            for _ in range(100):
                if await tab.evaluate("location.pathname + location.search") == target:
                    return []
                await asyncio.sleep(0.05)
            return [f"Enter on {target} does not open it"]
    return ["40 times Tab does not reach a run"]


async def main() -> int:
    """Write the pictures. 0 where the checks pass."""
    with tempfile.TemporaryDirectory() as folder:
        archive = await example_archive(Path(folder) / "runs.sqlite")
        journal = write_run(Path(folder) / "checkpoints" / "llama3-8b", step=10)
        try:
            return await draw(archive, Journals([journal]))
        finally:
            archive.close()


async def draw(archive: Archive, journals: Journals) -> int:
    """Check and draw the pages of the example runs, those of this archive and these journals included."""
    settings: dict[str, Any] = {"now": lambda: NOW, "archive": archive, "journals": journals}
    of_journals = [f"/journals/{each.uid}" for each in (await journals.runs("", 0, 100)).runs]
    runs, access = example_runs(), KeyAccess("example")
    app = application(Settings(runs, access, PublishedRecipes(None, None), **settings))
    listening = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    web = server(signed_in(app, "example"), None)
    serving = asyncio.create_task(web.serve([listening]))
    try:
        async with chromium() as tab:
            problems = await check(tab, url, [*PAGES, *of_journals])
            for name, path, (width, height), dark in PICTURES:
                await tab.open(url + path, width, height, dark=dark)
                (DOCS / name).write_bytes(await tab.screenshot())
                print(f"docs/{name}: {(DOCS / name).stat().st_size // 1000} kB")
    except BrowserMissingError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        web.should_exit = True
        await serving
    print("\n".join(problems) or "checks: pass")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
