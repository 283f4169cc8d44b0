"""Prepares one host for a recipe: the program of the jobs of `muster prepare`.

It is sent as the job's code, with the agent's modules that it uses. The agent starts it, sends its files,
gives signs of life, and ends it with all that it started. Its order is in $MUSTER_SPEC; its progress and
findings go into the job's events, as JSON lines of a kind: progress, failed (what, hint), report.

It runs twice on a host that lacks files: the first report names them, the second job brings them. Nothing
half-made is ever taken for whole: a file gets its name, and an environment its mark, once it is complete. The
builder of an environment holds a lock, which the kernel frees however its holder ends.
"""

from __future__ import annotations

import collections
import configparser
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from .files import REMOTE, existing, hash_file
from .talk import Problem

COMPLETE = "muster-complete.json"
LEAST_PYTHON = (3, 10)  # of the ranks
PROGRESS = (
    "Collecting ",
    "Downloading ",
    "Building ",
    "Installing ",
    "Fetching ",
    "Generating ",
    "Resolved ",
)

# What an interpreter's ranks would import, name by name; pip is left out: it only brought the others.
PACKAGES = """
import json, platform, re, sys, sysconfig
from importlib.metadata import distributions
versions = {}
for each in distributions():
    name = each.metadata["Name"]
    if name:
        versions.setdefault(re.sub(r"[-_.]+", "-", name).lower(), set()).add(str(each.version))
versions.pop("pip", None)
packages = {name: " and ".join(sorted(those)) for name, those in versions.items()}
print(json.dumps({"python": platform.python_version(), "tag": sys.implementation.cache_tag,
                  "platform": sysconfig.get_platform(), "packages": packages}))
"""

# Fetches one thing from the hub into the cache that Transformers or datasets looks into, and says into which
# folder.
DOWNLOAD = """
import json, os, sys
kind, name = sys.argv[1:3]
if kind == "dataset":
    import datasets
    name, _, subset = name.partition(":")
    try:
        parts = datasets.load_dataset(name, name=subset or None)
    except RuntimeError as error:
        if "scripts are no longer supported" not in str(error):
            raise
        parts = datasets.load_dataset(name, name=subset or None, revision="refs/convert/parquet")
    folder = os.path.dirname(next(iter(parts.values())).cache_files[0]["filename"])
else:
    import huggingface_hub
    wanted = {"allow_patterns": ["*.json", "*.model", "*.txt", "*.jinja"]}
    if kind == "model":
        ignore = ["*.h5", "*.msgpack", "*.ot", "*.onnx", "*.tflite", "*.gguf", "onnx/*", "original/*"]
        try:
            names = huggingface_hub.list_repo_files(name)
        except Exception:
            names = []  # without the hub, what is in the cache may do
        if any(each.endswith(".safetensors") for each in names):
            ignore += ["*.bin", "*.pt", "*.pth"]
        wanted = {"ignore_patterns": ignore}
    folder = huggingface_hub.snapshot_download(name, **wanted)
print(json.dumps({"folder": folder}))
"""

# pip's settings, and the variables by which uv takes each of their values: no password stands in an argument.
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "), "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","), "constraint": ("UV_CONSTRAINT", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "), "cert": ("SSL_CERT_FILE", " "), "proxy": ("ALL_PROXY", " "),
}  # fmt: skip


# ---- the host ----------------------------------------------------------------------------------------------


def file_system(path: str) -> str:
    """Return the type of the file system that holds `path`, by the longest mount point; "" where unknown."""
    real, best, kind = os.path.realpath(path), "", ""
    try:
        with open("/proc/self/mounts") as file:
            for line in file:
                words = line.split(" ")
                point = words[1].encode().decode("unicode_escape")
                inside = real == point or real.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, kind = point, words[2]
    except (OSError, IndexError, ValueError):
        pass
    return kind


def read_json(path: str) -> Dict[str, Any]:
    """Return a mark, or {} where there is no complete one."""
    try:
        with open(path) as file:
            data = json.load(file)
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def write_json(path: str, data: Any) -> None:
    """Write JSON whole or not at all: under another name, synced, renamed."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    part = "%s.%d.%s" % (path, os.getpid(), socket.gethostname())
    with open(part, "w") as file:
        json.dump(data, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


@contextlib.contextmanager
def locked(path: str, waits: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a file; `waits` is called where another process has it. A file system without locks
    has none to give."""
    with open(path, "a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                waits()
                fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def pip_settings() -> Dict[str, str]:
    """Return pip's configuration here: its environment's values win over `install`'s, these over `global`'s,
    and the user's file over the system's."""
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    system = (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    files = ["/etc/pip.conf", *(each + "/pip/pip.conf" for each in system)]
    files += ["~/.pip/pip.conf", config + "/pip/pip.conf", os.environ.get("PIP_CONFIG_FILE") or ""]
    parser = configparser.RawConfigParser()
    try:
        parser.read([os.path.expanduser(each) for each in files if each])
    except (configparser.Error, UnicodeDecodeError):
        return {}
    settings = {}  # type: Dict[str, str]
    for section in ("global", "install"):
        settings.update(parser.items(section) if parser.has_section(section) else ())
    for name, value in os.environ.items():
        if name.startswith("PIP_"):
            settings[name[4:].lower().replace("_", "-")] = value
    return settings


# ---- the job -----------------------------------------------------------------------------------------------


class Provision:
    """One host's part of `muster prepare`. `order`: what is to be done; `base`: the job's own folder."""

    def __init__(self, order: Dict[str, Any], base: str) -> None:
        self.order, self.code = order, os.path.join(base, "code")
        self.base = base
        self.cache = os.path.abspath(os.path.expanduser(order["cache"]))
        self.lacks = {}  # type: Dict[str, Any]
        rank = os.environ["MUSTER_RANK"]
        self.events = os.path.join(os.environ["MUSTER_EVENTS"], "rank%s.events.jsonl" % rank)

    def tell(self, kind: str, **content: Any) -> None:
        with open(self.events, "a") as file:
            file.write(json.dumps(dict(content, kind=kind)) + "\n")

    def progress(self, text: str) -> None:
        self.tell("progress", text=text)

    def run(self) -> None:
        """Do what is asked, and report."""
        try:
            self.tell("report", **getattr(self, "do_" + self.order["op"])())
        except Problem as problem:
            self.tell("failed", what=str(problem), hint=problem.hint)
        except OSError as error:
            what = "%s: %s" % (error.filename, error.strerror) if error.filename else str(error)
            self.tell("failed", what=what, hint=disk_hint(error))

    def program(self, argv: List[str], env: Optional[Dict[str, str]] = None) -> Tuple[int, List[str]]:
        """Run a program. Return its exit code and its last lines."""
        lines = collections.deque(maxlen=200)  # type: collections.deque[str]
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=env,
            )
        except OSError as error:
            raise Problem("cannot start %s: %s" % (argv[0], error.strerror)) from None
        assert child.stdout
        with child.stdout:
            for line in child.stdout:
                text = line.decode("utf-8", "replace").strip()
                lines.append(text)
                if text.startswith(PROGRESS):
                    self.progress(text[:120])
        return child.wait(), [line for line in lines if line]

    def do_make(self) -> Dict[str, Any]:
        """Make the environment, the files and what comes from the hub, or report what has to be sent."""
        home = os.path.expanduser("~")
        report = {
            "home_is_remote": file_system(home).startswith(REMOTE),
            "uid": os.getuid(),
            "marks": sorted(os.listdir(self.marks)) if os.path.isdir(self.marks) else [],
        }  # type: Dict[str, Any]
        if self.order["environment"]:
            report["environment"] = self.environment(self.order["environment"])
        else:  # the agent has started the ranks' interpreter
            report["environment"] = dict(self.packages(sys.executable), status="given", seconds=0)
        report["copied"] = self.files()
        if not self.lacks:
            python = report["environment"]["python"]
            report["fetched"] = [self.fetch(python, kind, name) for kind, name in self.order["hub"]]
        return dict(report, lacks=self.lacks)

    def do_fetch(self) -> Dict[str, Any]:
        """Fetch what other variables are for."""
        return {"fetched": [self.fetch(self.order["python"], kind, name) for kind, name in self.order["hub"]]}

    # ---- the environment

    def packages(self, python: str) -> Dict[str, Any]:
        """Return an interpreter's packages, and a digest of them. Raises Problem where ranks cannot run."""
        code, lines = self.program([python, "-c", PACKAGES])
        if code != 0:
            words = lines[-1] if lines else "exit code %s" % code
            raise Problem("%s does not run: %s" % (python, words), "was it removed or upgraded?")
        about = json.loads(lines[-1])
        check_python(about["python"])
        minor = ".".join(about["python"].split(".")[:2])
        text = json.dumps([minor, about["tag"], about["platform"], about["packages"]], sort_keys=True)
        return {"python": python, "about": about, "digest": hashlib.sha256(text.encode()).hexdigest()}

    def environment(self, wanted: Dict[str, Any]) -> Dict[str, Any]:
        """Build the environment, or find it complete."""
        began = time.monotonic()
        check_python(platform.python_version())
        path = os.path.abspath(os.path.expanduser(wanted["path"]))
        complete, begun = os.path.join(path, COMPLETE), path + ".building"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with locked(path + ".lock", lambda: self.progress("waiting for another host or command")):
            done = read_json(complete)
            if not done:
                self.claim(path, begun)
                uv = self.uv()
                if self.lacks:
                    return {"status": "absent", "python": "", "seconds": 0}
                write_json(begun, {})
                self.build(path, wanted, uv)
                built = self.packages(path + "/bin/python")
                packages = built["about"]["packages"]
                write_json(complete, {"key": wanted["key"], "packages": packages})
                os.unlink(begun)
                return dict(built, status="built", seconds=time.monotonic() - began)
        if done.get("key") != wanted["key"]:
            raise Problem(
                "%s holds an environment of other requirements" % path, "choose another --venv, or remove it"
            )
        present = self.packages(path + "/bin/python")
        was, now = done.get("packages", {}), present["about"]["packages"]
        changed = [name for name in {**was, **now} if was.get(name) != now.get(name)]
        if changed:
            name, more = changed[0], " and %d more" % (len(changed) - 1) if len(changed) > 1 else ""
            raise Problem(
                "the environment was changed since it was built: %s was %s and is %s%s"
                % (name, was.get(name) or "absent", now.get(name) or "absent", more),
                "remove %s there, then run prepare again" % path,
            )
        return dict(present, status="present", seconds=0)

    def claim(self, path: str, begun: str) -> None:
        """Remove what an interrupted build left; nothing that was not made here. Ask for what is missing."""
        if os.path.exists(begun):
            self.progress("removing what an interrupted build left")
            shutil.rmtree(path, ignore_errors=True)
        elif os.path.exists(path) and (not os.path.isdir(path) or os.listdir(path)):
            raise Problem("%s is there, and was not made by muster prepare" % path, "choose another --venv")
        if self.order["wheels"] and not self.order["brought"]:
            self.lacks["wheels"] = True

    def uv(self) -> Optional[str]:
        """Return uv of this host, or the one that was sent; None: pip is used."""
        offered, kept = self.order["uv"], os.path.join(self.cache, "bin", "uv")
        brought = os.path.join(self.code, offered["digest"]) if offered else ""
        if brought and os.path.exists(brought):
            os.makedirs(os.path.dirname(kept), exist_ok=True)
            part = "%s.%d.%s" % (kept, os.getpid(), socket.gethostname())
            shutil.copyfile(brought, part)
            os.chmod(part, 0o755)
            os.replace(part, kept)
        for each in (shutil.which("uv"), os.path.expanduser("~/.local/bin/uv"), kept):
            if each and os.access(each, os.X_OK) and self.program([each, "--version"])[0] == 0:
                return each
        if offered and offered["machine"] == platform.machine() and not self.order["brought"]:
            self.lacks["uv"] = True
        return None

    def build(self, path: str, wanted: Dict[str, Any], uv: Optional[str]) -> None:
        """Build a venv in its final place, since it is not relocatable, and mark it when it is complete."""
        self.progress("making the environment")
        python = sys.executable
        code, lines = self.program(
            [uv, "venv", "--python", python, path] if uv else [python, "-m", "venv", path]
        )
        if code != 0:
            minor = "%d.%d" % sys.version_info[:2]
            hint = "there: apt install python%s-venv; or install uv there or here" % minor
            raise Problem("the environment cannot be made: %s" % last_words(lines), hint)
        lock = os.path.join(path, "muster-requirements.txt")
        argv = ["-r", lock]
        with open(lock, "w") as file:
            file.write(wanted["requirements"])
        if wanted["constraints"]:
            with open(os.path.join(path, "muster-constraints.txt"), "w") as file:
                file.write(wanted["constraints"])
            argv += ["-c", file.name]
        if self.order["wheels"]:
            argv += ["--no-index", "--find-links", self.wheels()]
        elif uv and without_index():
            argv += ["--no-index"]
        if uv:
            argv = [uv, "pip", "install", "--python", path + "/bin/python", *argv]
        else:
            quiet = ["--no-input", "--disable-pip-version-check", "--no-warn-script-location"]
            quiet += ["--progress-bar", "off"]
            argv = [path + "/bin/python", "-I", "-m", "pip", "install", *quiet, *argv]
        code, lines = self.program(
            argv, env=install_environment(wanted["index"], offline=bool(self.order["wheels"]))
        )
        if code != 0:
            raise Problem("%s: %s" % ("uv" if uv else "pip", last_words(lines)), self.install_hint(lines))

    def wheels(self) -> str:
        """Return a folder with the wheels that were sent, by their names."""
        folder = os.path.join(self.base, "wheels")
        os.makedirs(folder, exist_ok=True)
        for name, digest in self.order["wheels"].items():
            os.symlink(os.path.join(self.code, digest), os.path.join(folder, name))
        return folder

    def install_hint(self, lines: List[str]) -> str:
        """Return what to do about the usual installation errors."""
        text = "\n".join(lines)
        if "No space left" in text:
            return "free some space there, or choose another disk by --venv"
        if self.order["wheels"]:
            return "--wheels lacks it: pip download -d FOLDER for the hosts' Python and platform"
        if "No matching distribution" in text or "was not found in the package registry" in text:
            version = platform.python_version()
            return "is there such a version for Python %s there? no network: --wheels" % version
        return "--index URL of an index that it can reach, or --wheels FOLDER"

    # ---- files and the hub

    def files(self) -> List[int]:
        """Move the files that are missing here to their places. Return the indices of those that were sent.
        Raises Problem where something else has a file's place."""
        lacks, brought = [], []  # type: List[int], List[int]
        differs = []  # type: List[str]
        for index, (path, size, changed, digest) in enumerate(self.order["files"]):
            if not os.path.lexists(path):
                lacks.append(index)
                continue
            about = os.stat(path) if os.path.exists(path) else None
            if about is None or not stat.S_ISREG(about.st_mode) or about.st_size != size:
                differs.append(path)
            elif about.st_mtime_ns != changed and digest is None:
                self.lacks.setdefault("hashes", []).append(index)  # it has to be compared by its content
            elif about.st_mtime_ns != changed and hash_file(path) != digest:
                differs.append(path)
        if differs:
            more = " and %d more" % (len(differs) - 1) if len(differs) > 1 else ""
            what = "%s%s differs from what the recipe's is, and nothing is written over it" % (
                differs[0],
                more,
            )
            raise Problem(what, "remove it or rename it there, then run prepare again")
        if lacks and not self.order["brought"]:
            self.check_room([self.order["files"][index] for index in lacks])
            self.lacks["files"] = lacks
        elif lacks:
            for index in lacks:
                self.place(*self.order["files"][index])
                brought.append(index)
        return brought

    def check_room(self, files: List[List[Any]]) -> None:
        """Raise Problem where files have no room, or their folder cannot be made or written."""
        sizes = {}  # type: Dict[str, int]
        for path, size, *_ in files:
            sizes[os.path.dirname(path)] = sizes.get(os.path.dirname(path), 0) + size
        for way in sorted(sizes):
            while not os.path.lexists(way):
                way = os.path.dirname(way)
            if not os.path.isdir(way):
                raise Problem(
                    "%s is not a folder, and the recipe has files below it" % way,
                    "remove it or rename it there, then run prepare again",
                )
        needs = {}  # type: Dict[int, int]
        # What is brought is kept until it has its place, and the job has a copy of its own.
        for place, size in (*sizes.items(), (self.cache, 2 * sum(sizes.values()))):
            above = existing(place)
            if not os.access(above, os.W_OK):
                what = "%s is not there, and " % place if above != place else ""
                raise Problem("%s%s cannot be written" % (what, above), "copy it by hand")
            free = shutil.disk_usage(above).free
            disk = os.stat(above).st_dev
            needs[disk] = needs.get(disk, 0) + size
            if needs[disk] > free:
                what = "%s needs %.1f GB, and %.1f GB are free" % (place, needs[disk] / 1e9, free / 1e9)
                raise Problem(what, "free some space there, or choose another disk")

    def place(self, path: str, size: int, changed: int, digest: str) -> None:
        """Give a file that was sent its name; an existing file of that name stays."""
        folder = os.path.dirname(path)
        os.makedirs(folder, exist_ok=True)
        part = os.path.join(folder, ".muster-%s-%d.part" % (digest[:24], os.getpid()))
        try:
            with open(os.path.join(self.code, digest), "rb") as source, open(part, "wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
                copy.flush()
                os.fsync(copy.fileno())
            os.utime(part, ns=(changed, changed))
            try:
                os.link(part, path)  # unlike a rename, this never writes over another file
            except FileExistsError:  # of another host or command that is at it
                if hash_file(path) != digest:
                    raise Problem(
                        "%s appeared while it was being copied" % path, "run prepare again"
                    ) from None
            except OSError:  # a file system without hard links
                os.rename(part, path)
        finally:
            if os.path.exists(part):
                os.unlink(part)

    def fetch(self, python: str, kind: str, name: str) -> Dict[str, Any]:
        """Fetch from the hub by the environment's own libraries, which have locks of their own."""
        began = time.monotonic()
        where = [os.environ.get(each) or "" for each in ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE")]
        mark = self.mark("hub", kind, name, *where)
        done = read_json(mark).get("files", {})
        if done and all(os.path.exists(each) and os.path.getsize(each) == done[each] for each in done):
            return {"status": "present", "bytes": 0, "size": sum(done.values()), "files": 0, "seconds": 0}
        self.progress("fetching %s %s" % (kind, name))
        code, lines = self.program([python, "-c", DOWNLOAD, kind, name])
        if code != 0:
            raise Problem(
                "%s %s cannot be fetched: %s" % (kind, name, last_words(lines)),
                "without network access, download it elsewhere and give its folder in the recipe",
            )
        folder = json.loads(next(line for line in reversed(lines) if line.startswith("{")))["folder"]
        files = [os.path.join(root, each) for root, _, names in os.walk(folder) for each in names]
        sizes = {each: os.path.getsize(each) for each in files}
        write_json(mark, {"files": sizes})
        size, seconds = sum(sizes.values()), time.monotonic() - began
        return {"status": "downloaded", "bytes": size, "size": size, "files": len(files), "seconds": seconds}

    # ---- what else is asked

    @property
    def marks(self) -> str:
        return os.path.join(self.cache, "prepared")

    def mark(self, *words: str) -> str:
        """Return the path that records that something was done. Each host has its own, since the home folder
        may be shared."""
        name = "\0".join([*words, socket.gethostname()])
        return os.path.join(self.marks, hashlib.sha256(name.encode()).hexdigest()[:24] + ".json")

    def do_scratch(self) -> Dict[str, Any]:
        """Make folders on this host's own disk that no other user can have planted: ours, and closed to
        others."""
        new = False
        for base, *parts in self.order["folders"]:
            place = base  # such as /tmp
            if not os.path.isdir(place):
                raise Problem("no folder %s" % place, "--kernel-cache of a folder that every host has")
            for part in parts:
                place = os.path.join(place, part)
                made = not os.path.lexists(place)
                if made:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(place, 0o700)
                about = os.lstat(place)
                if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
                    raise Problem(
                        "%s is not ours alone" % place, "remove it there: compiled code is run from it"
                    )
                new = new or made
        return {"new": new}

    def do_note(self) -> Dict[str, Any]:
        """Record that something was done, and remove what it left."""
        for name in self.order["remove"]:
            shutil.rmtree(os.path.join(self.cache, name), ignore_errors=True)
        for digest in self.order["forget"]:  # contents that have their places now
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.cache, "code", digest))
        if self.order["mark"]:
            write_json(os.path.join(self.marks, self.order["mark"]), {})
        return {}


def check_python(version: str) -> None:
    """Raise Problem where ranks cannot run."""
    if tuple(int(part) for part in version.split(".")[:2]) < LEAST_PYTHON:
        least = "%d.%d" % LEAST_PYTHON
        raise Problem(
            "has Python %s, and ranks need %s or later" % (version, least), "--python of a later one"
        )


def disk_hint(error: OSError) -> Optional[str]:
    """Return what to do about the usual errors of a file system; None for others."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space there, or choose another disk: --venv, launch.workdir"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "let the login write there, or choose another place"
    return None


def install_environment(index: Optional[str], *, offline: bool) -> Dict[str, str]:
    """Return the environment of uv and pip: uv gets pip's settings where it has none of its own. Versions are
    compared over all indexes, as pip does."""
    unwanted = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in unwanted}
    env.update(UV_INDEX_STRATEGY="unsafe-best-match", UV_PYTHON_DOWNLOADS="never", UV_NO_PROGRESS="1")
    if index:
        return dict(env, PIP_INDEX_URL=index, UV_DEFAULT_INDEX=index)  # no arguments: it may hold a password
    settings = pip_settings()
    for key, (variable, separator) in VARIABLES.items():
        if settings.get(key) and not (offline and key == "find-links"):
            env.setdefault(variable, separator.join(settings[key].split()))
    return env


def without_index() -> bool:
    """Whether pip's settings forbid indexes, for which uv has no variable."""
    return pip_settings().get("no-index", "").lower() in ("1", "true", "yes", "on")


def last_words(lines: List[str]) -> str:
    """Return what went wrong, in the words of uv or pip."""
    errors = [line for line in lines if line.startswith("ERROR:")]
    begin = next((at for at, line in enumerate(lines) if line.startswith(("\u00d7", "error:"))), None)
    if begin is not None and not errors:
        return " ".join(line.strip("\u00d7\u2570\u2500\u25b6\u2502 ") for line in lines[begin:])[:600]
    return (errors or list(lines) or ["no reason given"])[-1].replace("ERROR: ", "")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # what is begun is tidied up
    with open(os.environ["MUSTER_SPEC"]) as spec_file:
        spec = json.load(spec_file)
    Provision(spec["order"], spec["base"]).run()
