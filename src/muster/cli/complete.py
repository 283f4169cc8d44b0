"""What a shell offers behind a verb: runs, recipes, suites, hosts."""

from __future__ import annotations

from pathlib import Path

from muster.cli.parameters import Names

_KEPT = 50  # runs; the newest


def candidates(names: Names, begun: str, root: Path) -> list[str]:
    """Names that begin like this, and files where a file can be given. Wherever `=` stands, nothing."""
    if "=" in begun:
        return []
    known = {"runs": _runs, "recipes": _recipes, "suites": _suites, "hosts": _hosts}[names](root)
    files = [] if names == "runs" and not begun.startswith((".", "/", "~")) else _files(begun, names)
    return [name for name in known if name.startswith(begun)] + files


def _runs(root: Path) -> list[str]:
    from muster.store.runfolder import list_runs

    return ["last", *(run.id for run in reversed(list_runs(root)[-_KEPT:]))]


def _recipes(root: Path) -> list[str]:
    return _stems("recipes")


def _suites(root: Path) -> list[str]:
    return _stems("suites")


def _hosts(root: Path) -> list[str]:
    return ["local:2", "local:2x1", "localhost", "slurm:"]


def _stems(folder: str) -> list[str]:
    package = Path(__file__).resolve().parent.parent
    return sorted(path.stem for path in (package / folder).glob("*.yaml"))


def _files(begun: str, names: Names) -> list[str]:
    """Folders, to go on from there; YAML files for recipes and suites, any file for hosts, none for runs."""
    head, slash, tail = begun.rpartition("/")
    found = []
    try:
        for path in sorted(Path(head + slash or ".").expanduser().iterdir()):
            fits = path.name.startswith(tail) and (tail or not path.name.startswith("."))
            wanted = names == "hosts" or (names != "runs" and path.suffix in (".yaml", ".yml"))
            if fits and (path.is_dir() or wanted):
                found.append(f"{head}{slash}{path.name}{'/' if path.is_dir() else ''}")
    except OSError:
        pass
    return found
