"""Make docs/report.png, the picture in the README: the top of a real run's report page, taken by Chromium.

.venv/bin/python dev/report_picture.py              # runs the demo first (make picture)
.venv/bin/python dev/report_picture.py --run RUN    # of a run that is there
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "report.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
MUSTER = (sys.executable, "-m", "muster")


def photograph(page: Path, picture: Path, width: int = 1200, height: int = 1560) -> None:
    """The top of an HTML page as a PNG file."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit(f"no browser found; install one of: {', '.join(BROWSERS)}")
    with tempfile.TemporaryDirectory() as profile:
        argv = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={profile}", f"--window-size={width},{height}", f"--screenshot={picture}",
            page.resolve().as_uri(),
        ]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    if done.returncode or not picture.is_file():
        sys.exit(f"{browser} made no picture:\n{done.stderr[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", help="a run; default: a new one of the demo")
    parser.add_argument("--output", type=Path, default=PICTURE)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [] if given.run else ["--runs", folder]
        if not given.run:
            subprocess.run([*MUSTER, "demo", *runs], check=True)
        page = Path(folder) / "report.html"
        subprocess.run([*MUSTER, "report", given.run or "last", "--output", page, *runs], check=True)
        photograph(page, given.output)


if __name__ == "__main__":
    main()
