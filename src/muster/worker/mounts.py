"""What file system a path lies on. Standard library alone: ranks that only measure a fabric need it too."""

from __future__ import annotations

from pathlib import Path


def file_system(path: Path) -> str:
    """Find the type of the file system that holds `path`, by the longest mount point; "" where unknown."""
    real, best, kind = path.resolve(), Path(), ""
    try:
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            words = line.split(" ")
            point = Path(words[1].encode().decode("unicode_escape"))
            if real.is_relative_to(point) and len(point.parts) >= len(best.parts):
                best, kind = point, words[2]
    except (OSError, IndexError, ValueError):
        pass
    return kind
