import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_catalog_pages_match_the_data() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "catalog_pages.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
