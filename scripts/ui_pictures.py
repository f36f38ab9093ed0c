"""Draws docs/ui-*.png from the example runs, and checks the page in a browser: `make ui-pictures`.

Needs a Chromium on PATH. Exits with 1 where a page is wider than the window, a script or style is refused,
text has too little contrast, or the keyboard alone does not reach what it should.
"""

import asyncio
import sys
from pathlib import Path
from typing import Final

from testkit.chromium import BrowserMissingError, chromium
from testkit.example_archive import DELETED
from testkit.page_checks import COMPARE, PAGES, PHONE, RUN, appearance, keyboard, served

DOCS: Final = Path(__file__).parents[1] / "docs"
PICTURES: Final = (
    ("ui-runs.png", "/", (1280, 900), False),
    ("ui-run.png", RUN, (1280, 1100), False),
    ("ui-layout.png", f"{RUN}?rank=25#layout", (1280, 900), True),
    ("ui-incidents.png", f"{RUN}#incidents", (1280, 900), False),
    ("ui-recipe.png", f"{RUN}/recipe", (1280, 900), False),
    ("ui-compare.png", COMPARE, (1280, 900), False),
    ("ui-ledger.png", "/ledger", (1280, 900), False),
    ("ui-phone.png", RUN, PHONE, True),
    ("ui-archive.png", "/archive", (1280, 500), False),
    ("ui-deleted.png", DELETED, (1280, 1100), True),
)
"""File, path, window, dark."""


async def main() -> int:
    """Write the pictures. 0 where the checks pass."""
    try:
        async with served() as page, chromium() as tab:
            problems = await appearance(tab, page.url, [*PAGES, *page.journals])
            problems += await keyboard(tab, page.url)
            for name, path, (width, height), dark in PICTURES:
                await tab.open(page.url + path, width, height, dark=dark)
                (DOCS / name).write_bytes(await tab.screenshot())
                print(f"docs/{name}: {(DOCS / name).stat().st_size // 1000} kB")
    except BrowserMissingError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(problems) or "checks: pass")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
