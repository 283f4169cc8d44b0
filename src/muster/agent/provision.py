"""Provision: makes one host ready for a recipe. Builds its environment, takes files, fetches from the hub.

One file, standard library alone, Python >= 3.8: the launchers send this text to a bare host. It speaks JSON
lines, and does one thing at a time, in the order of the requests:
  in   hello, environment, packages, scan, get, compare, put (that many raw bytes follow), seal, download,
       cached, scratch, noted, note, remove, ping, bye
  out  reply (to a request, by its id), progress, beat
What it starts ends with it, and it ends when its input closes, when the controller is silent for longer than
the lease, when it is signalled, or when its parent is gone.

Nothing half-made is ever taken for whole: a marker is written last, by rename. Locks are fcntl's, because the
kernel gives them back however their holder ends, over NFS too: no lock is ever stale. Where a file system has
no locks, or keeps them to each host, mkdir and rename decide who builds, and a pulse in the half-made
environment tells the others that its builder is alive.
"""

from __future__ import annotations

import base64
import collections
import ctypes
import errno
import fcntl
import glob
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from typing import Any, Generator

TICK = 0.05  # seconds between two looks where nothing comes
BEAT = 1.0  # seconds between signs of life
GRACE = 1.5  # seconds between SIGTERM and SIGKILL
PULSE = 2.0  # seconds between two signs of life of an environment in the making
SILENT = 5 * PULSE  # seconds without one, after which its builder on another machine counts as gone
BLOCK = 1 << 22  # bytes hashed between two looks
SYNC = 1 << 26  # bytes written between two syncs
COMPLETE = "muster-complete.json"
BUILDING = "muster-building.json"
TELLING = ("Collecting ", "Downloading ", "Building ", "Installing ", "Fetching ", "Generating ")
# How the types of file systems begin that several machines may share; the same as in checks/families/disk.py.
REMOTE = (
    "nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "smbfs", "9p", "afs", "gluster", "pvfs2",
    "orangefs", "panfs", "weka", "virtiofs", "fuse.gluster", "fuse.sshfs", "fuse.ceph", "fuse.juicefs",
)  # fmt: skip

Step = Generator[bool, None, Any]  # yields whether there is more to do at once

# What an interpreter's ranks would import, name by name; pip is left out: it only brought the others.
PACKAGES = """
import json, platform, re, sys, sysconfig
from importlib.metadata import distributions
found = {}
for each in distributions():
    name = each.metadata["Name"]
    if name:
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), set()).add(str(each.version))
found.pop("pip", None)
packages = {name: " and ".join(sorted(versions)) for name, versions in found.items()}
print(json.dumps({"python": platform.python_version(), "tag": sys.implementation.cache_tag,
                  "platform": sysconfig.get_platform(), "packages": packages}))
"""

# Debian's python3 lacks ensurepip until python3-venv is installed.
INTERPRETER = """
import json, sys
lacks = None
try:
    import venv, ensurepip
except ImportError as error:
    lacks = error.name
print(json.dumps({"version": sys.version.split()[0], "lacks": lacks}))
"""

# Fetches one thing from the hub into the cache that Transformers or datasets looks into, and says into which.
DOWNLOAD = """
import json, os, sys
kind, name = sys.argv[1:3]
if kind == "dataset":
    import datasets
    name, _, subset = name.partition(":")
    try:
        files = datasets.load_dataset(name, name=subset or None)
    except RuntimeError as error:
        if "scripts are no longer supported" not in str(error):
            raise
        files = datasets.load_dataset(name, name=subset or None, revision="refs/convert/parquet")
    folder = next(iter(files.values())).cache_files[0]["filename"]
    base = os.path.realpath(datasets.config.HF_DATASETS_CACHE)
    print(json.dumps(["datasets", os.path.relpath(os.path.realpath(folder), base).split(os.sep)[0]]))
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
    path = huggingface_hub.snapshot_download(name, **wanted)
    print(json.dumps(["hub", os.path.basename(os.path.dirname(os.path.dirname(path)))]))
"""


class Problem(Exception):
    """Something that the user can mend: what, and a hint."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.hint = hint


def die_with_parent() -> None:
    """Between fork and exec: Linux ends the child when its parent is gone, even by SIGKILL."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        pass


def write_json(path: str, data: Any) -> None:
    """Whole or not at all: written beside, synced, renamed."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    beside = "%s.%d.%s" % (path, os.getpid(), socket.gethostname())
    try:
        with open(beside, "w") as file:
            json.dump(data, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        if os.path.exists(beside):
            os.unlink(beside)
        raise


def read_json(path: str) -> dict[str, Any]:
    """A marker, or {} where there is none that is whole."""
    try:
        with open(path) as file:
            data = json.load(file)
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def boot_id() -> str:
    """Which kernel this is: fcntl locks of the same one are known to both sides."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def existing(path: str) -> str:
    """The nearest folder above (or at) `path` that is there."""
    while not os.path.isdir(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def file_system(path: str) -> str:
    """The type of the file system that holds `path`, by the longest mount point; "" where unknown."""
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


def remove_tree(path: str) -> Step:
    """rm -rf that looks up now and then. Links are removed, never followed."""
    for folder, folders, files in os.walk(path, topdown=False):
        for name in [*files, *folders]:
            each = os.path.join(folder, name)
            if name in folders and not os.path.islink(each):
                os.rmdir(each)
            else:
                os.unlink(each)
        yield True
    os.rmdir(path)


def hash_file(path: str, digest: Any, limit: int | None = None) -> Step:
    """Put a file's bytes (its first `limit`) into `digest`."""
    with open(path, "rb") as file:
        while limit is None or limit > 0:
            data = file.read(BLOCK if limit is None else min(BLOCK, limit))
            if not data:
                return
            limit = None if limit is None else limit - len(data)
            digest.update(data)
            yield True


def remove_stale(path: str) -> bool:
    """Remove a lock of ours that nobody has open, as far as the kernel tells. -> whether it was removed."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # its builder is done, or it is another user's
        return False
    try:
        if os.fstat(file).st_uid != os.getuid():
            return False
        try:
            fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # for who opens it now; SIGIO would end us
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return False
        if os.stat(path).st_ino != os.fstat(file).st_ino:
            return False  # released, and made anew by the next builder
        os.unlink(path)
        return True
    except FileNotFoundError:
        return False
    finally:
        os.close(file)


class Lock:
    """An exclusive lock on a file. `supported` is False where the file system has none: go on with care."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = -1
        self.supported = True

    def take(self, say: Any) -> Step:
        """Wait until it is ours. Its last holder may have removed it, so look whether it is still the one."""
        said = False
        while True:
            if self.file < 0:
                self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    self.supported = False
                    return
                if not said:
                    said = True
                    say("waiting for another host or command that is at it")
                yield False
                continue
            try:
                now = os.stat(self.path)
                mine = os.fstat(self.file)
                if (now.st_dev, now.st_ino) == (mine.st_dev, mine.st_ino):
                    return
            except FileNotFoundError:
                pass
            os.close(self.file)
            self.file = -1

    def drop(self, forget: bool = False) -> None:
        """Give it back; `forget`: and remove the file."""
        if self.file >= 0:
            if forget:
                try:
                    os.unlink(self.path)
                except OSError:
                    pass
            os.close(self.file)
            self.file = -1


class Receiver:
    """Files of one tree, as they come: each into a part beside its place, renamed when its hash is right."""

    def __init__(self, root: str, files: list[dict[str, Any]], lock: Lock) -> None:
        self.root, self.files, self.lock = root, files, lock
        self.wanted: dict[int, tuple[Any, int]] = {}  # index -> hash so far, offset
        self.bytes = self.count = self.unsynced = 0
        self.index = -1
        self.file: Any = None
        self.problem: Problem | None = None

    def part(self, index: int) -> str:
        """Where a file grows. Named by its content: after an interruption it grows on."""
        place = os.path.dirname(os.path.join(self.root, self.files[index]["path"]))
        return os.path.join(place, ".muster-%s.part" % self.files[index]["sha256"][:24])

    def put(self, index: int, data: bytes) -> None:
        """More of a file. After a problem everything is let pass until the tree is sealed."""
        if self.problem:
            return
        try:
            if index != self.index:
                self.begin(index)
            self.take(data)
        except OSError as error:
            self.problem = Problem("%s: %s" % (error.filename or self.root, error.strerror), disk_hint(error))
        except Problem as problem:
            self.problem = problem

    def begin(self, index: int) -> None:
        if index not in self.wanted:
            raise Problem("a file came that was not asked for")
        self.index = index
        self.digest, self.size = self.wanted[index]
        part = self.part(index)
        make_folder(self.root, self.files[index]["path"])
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self.file = os.fdopen(os.open(part, flags, 0o666), "ab", buffering=0)

    def take(self, data: bytes) -> None:
        wanted = self.files[self.index]
        view = memoryview(data)
        while view:
            view = view[self.file.write(view) :]
        self.digest.update(data)
        self.size += len(data)
        self.bytes += len(data)
        self.unsynced += len(data)
        if self.unsynced > SYNC or self.size >= wanted["size"]:
            os.fsync(self.file.fileno())  # in portions: one long sync would look like a dead host
            self.unsynced = 0
        if self.size >= wanted["size"]:
            self.file.close()
            self.file = None
            self.finish(wanted)

    def finish(self, wanted: dict[str, Any]) -> None:
        part, place = self.part(self.index), os.path.join(self.root, wanted["path"])
        if self.size != wanted["size"] or self.digest.hexdigest() != wanted["sha256"]:
            os.unlink(part)
            raise Problem(
                "%s did not arrive as it was sent" % place, "did it change meanwhile? run prepare again"
            )
        if wanted.get("replace"):
            os.replace(part, place)
        else:
            try:
                os.link(part, place)  # unlike a rename, this never writes over another file
                os.unlink(part)
            except FileExistsError:
                raise Problem("%s appeared while it was being copied" % place, "run prepare again") from None
            except OSError:  # a file system without hard links
                os.rename(part, place)
        del self.wanted[self.index]
        self.count += 1

    def close(self) -> None:
        """Give everything back. Parts stay, to go on from."""
        if self.file:
            self.file.close()
        self.lock.drop(forget=True)


def disk_hint(error: OSError) -> str | None:
    """What to do about an error of the file system, where it is one of the usual."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space there, or choose another disk: --venv, launch.workdir"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "let the login write there, or choose another place"
    return None


def inside(root: str, path: str) -> str:
    """The place of a tree's file. Raises Problem for a name that would leave the tree."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise Problem("%r is not a path inside a folder" % path)
    return os.path.join(root, *parts)


def make_folder(root: str, path: str) -> None:
    """Make the folder that `path` of a tree goes into. Raises Problem where a link leads out of the tree."""
    place = root
    for part in path.split("/")[:-1]:
        place = os.path.join(place, part)
        if os.path.islink(place):
            raise Problem("%s is a link, and files are not copied through links" % place, "remove it there")
    os.makedirs(place, exist_ok=True)


class Provision:
    """One host's part of `muster prepare`."""

    def __init__(self) -> None:
        self.inbox = bytearray()
        self.outbox: collections.deque[bytes] = collections.deque()
        self.queue: collections.deque[tuple[int, Step]] = collections.deque()
        self.raw: tuple[int, int] | None = None  # file, bytes that still belong to it
        self.receiver: Receiver | None = None
        self.child: Any = None
        self.parent = os.getppid()
        self.signalled: int | None = None
        self.heard = self.beaten = self.pulsed = time.monotonic()
        self.lease = 60.0
        self.cache = os.path.expanduser("~/.cache/muster")
        self.env: dict[str, str] = {}
        self.over = False
        self.code = 0  # how the last program ended
        self.opened: dict[str, Any] = {}  # the request that opened the receiver
        self.pulse: dict[str, Any] | None = None

    # --- talking -------------------------------------------------------------------------------------------

    def say(self, message: str, **content: Any) -> None:
        content["m"] = message
        self.outbox.append(json.dumps(content).encode() + b"\n")

    def progress(self, text: str) -> None:
        self.say("progress", text=text)

    def flush(self) -> None:
        """Send what the other side takes now."""
        while self.outbox:
            try:
                sent = os.write(1, self.outbox[0])
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR):
                    self.over = True
                    self.outbox.clear()
                return
            if sent < len(self.outbox[0]):
                self.outbox[0] = self.outbox[0][sent:]
                return
            self.outbox.popleft()

    def listen(self, seconds: float) -> None:
        """Take what has come, after waiting for at most `seconds`."""
        ready = select.select([0], [1] if self.outbox else [], [], seconds)[0]
        if not ready:
            return
        try:
            data = os.read(0, 1 << 20)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.over = True
            return
        self.heard = time.monotonic()
        self.inbox += data
        self.parse()

    def parse(self) -> None:
        while self.inbox:
            if self.raw:
                index, left = self.raw
                data = bytes(self.inbox[:left])
                del self.inbox[: len(data)]
                self.raw = (index, left - len(data)) if left > len(data) else None
                if self.receiver:
                    self.receiver.put(index, data)
                continue
            end = self.inbox.find(b"\n")
            if end < 0:
                return
            line = bytes(self.inbox[:end])
            del self.inbox[: end + 1]
            if line.strip():
                self.request(json.loads(line))

    def request(self, message: dict[str, Any]) -> None:
        op = message["op"]
        if op == "bye":
            self.over = True
        elif op == "put":
            if message["bytes"]:
                self.raw = (int(message["file"]), int(message["bytes"]))
            elif self.receiver:
                self.receiver.put(int(message["file"]), b"")
        elif op != "ping":
            self.queue.append((message["id"], getattr(self, "do_" + op)(message)))

    # --- the loop ------------------------------------------------------------------------------------------

    def work(self) -> bool:
        """A bit of the first request. -> whether there is more to do at once."""
        if not self.queue:
            return False
        number, step = self.queue[0]
        try:
            return bool(next(step))
        except StopIteration as end:
            self.say("reply", id=number, **(end.value or {}))
        except Problem as problem:
            self.say("reply", id=number, error=str(problem), hint=problem.hint)
        except OSError as error:
            what = "%s: %s" % (error.filename, error.strerror) if error.filename else str(error)
            self.say("reply", id=number, error=what, hint=disk_hint(error))
        except Exception as error:  # the last line of defence: say it, and stay for the next request
            self.say("reply", id=number, error="%s: %s" % (type(error).__name__, error), hint=None)
        self.queue.popleft()
        return True

    def run(self) -> int:
        """Until the controller has had enough, or is gone."""
        os.set_blocking(1, False)
        self.outbox.append(b"\n")  # ends whatever a login script printed without one
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.on_signal)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        try:
            while not self.over and self.signalled is None and os.getppid() == self.parent:
                busy = self.work()
                now = time.monotonic()
                if now - self.beaten >= BEAT:
                    self.beaten = now
                    self.say("beat")
                self.flush()
                self.listen(0 if busy else TICK)
                if time.monotonic() - self.heard > self.lease:
                    break
        finally:
            for _, step in self.queue:
                step.close()
            self.end_child()
            if self.receiver:
                self.receiver.close()
        return 0

    def on_signal(self, number: int, frame: Any) -> None:
        self.signalled = number

    # --- programs ------------------------------------------------------------------------------------------

    def program(self, argv: list[str], env: dict[str, str] | None = None, say: bool = False) -> Step:
        """Run a program in a session of its own. Returns (exit code, its last lines)."""
        lines: collections.deque[str] = collections.deque(maxlen=200)
        partial = b""
        try:
            self.child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=env,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            raise Problem("cannot start %s: %s" % (argv[0], error.strerror)) from None
        os.set_blocking(self.child.stdout.fileno(), False)
        try:
            while True:
                ended = self.child.poll() is not None
                data = self.child.stdout.read(1 << 16)
                if data:
                    *whole, partial = (partial + data).split(b"\n")
                    for line in whole:
                        text = line.decode("utf-8", "replace").strip()
                        lines.append(text)
                        if say and text.startswith(TELLING):
                            self.progress(text[:120])
                elif ended:
                    break
                self.beat_pulse()
                yield bool(data)
        finally:
            self.end_child()
        lines.append(partial.decode("utf-8", "replace").strip())
        return self.code, [line for line in lines if line]

    def end_child(self) -> None:
        """End what was started, with all that it started: it leads a session of its own."""
        child = self.child
        if child is None:
            return
        limit = time.monotonic() + GRACE
        number = signal.SIGTERM
        while True:
            try:
                os.killpg(child.pid, number)
            except OSError:
                break
            if child.poll() is not None and number == signal.SIGKILL:
                break
            if time.monotonic() > limit:
                number = signal.SIGKILL
            time.sleep(0.02)
        self.code = child.wait()
        child.stdout.close()
        self.child = None

    def beat_pulse(self) -> None:
        """Tell other machines that the environment in the making has a living builder."""
        if self.pulse and time.monotonic() - self.pulsed > PULSE:
            self.pulsed = time.monotonic()
            self.pulse["count"] += 1
            write_json(self.pulse["path"], self.pulse)

    # --- hello ---------------------------------------------------------------------------------------------

    def do_hello(self, message: dict[str, Any]) -> Step:
        self.lease = float(message["lease"])
        self.cache = os.path.abspath(os.path.expanduser(message["cache"]))
        self.env = dict(message["env"])
        asked = message.get("python")
        python = shutil.which(os.path.expanduser(asked)) if asked else sys.executable
        if not python:
            raise Problem("no interpreter %s" % asked, "--python of one that every host has")
        code, lines = yield from self.program([python, "-I", "-c", INTERPRETER])
        if code != 0:
            raise Problem("%s does not run: %s" % (python, last_words(lines)))
        home = os.path.expanduser("~")
        return {
            "hostname": socket.gethostname(),
            "machine": boot_id(),
            "python": python,
            **json.loads(lines[-1]),
            "cache": self.cache,
            "home": home,
            "home_file_system": file_system(home),
            "home_is_remote": file_system(home).startswith(REMOTE),
            "uid": os.getuid(),
        }

    # --- the environment -----------------------------------------------------------------------------------

    def do_packages(self, message: dict[str, Any]) -> Step:
        """What is installed for the first of some interpreters that is here."""
        pythons = [shutil.which(os.path.expanduser(each)) for each in message["pythons"]]
        python = next((each for each in pythons if each), None)
        if not python:
            raise Problem(
                "no interpreter %s" % message["pythons"][0], "launch.python=PATH of one that it has"
            )
        found = yield from self.packages(python)
        return {"python": python, "status": "given", **found}

    def packages(self, python: str) -> Step:
        code, lines = yield from self.program([python, "-c", PACKAGES])
        if code != 0:
            words = lines[-1] if lines else "exit code %s" % code
            raise Problem("%s does not run: %s" % (python, words), "was it removed or upgraded?")
        about = json.loads(lines[-1])
        minor = ".".join(about["python"].split(".")[:2])
        text = json.dumps([minor, about["tag"], about["platform"], about["packages"]], sort_keys=True)
        return {"about": about, "digest": hashlib.sha256(text.encode()).hexdigest()}

    def do_environment(self, message: dict[str, Any]) -> Step:
        """Build the environment, or find it whole."""
        began = time.monotonic()
        path = os.path.abspath(os.path.expanduser(message["path"]))
        done = read_json(os.path.join(path, COMPLETE))
        if done:  # it never changes again, so nobody has to wait for anybody
            return (yield from self.found(path, done, message["key"]))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        lock = Lock(path + ".lock")
        yield from lock.take(self.progress)
        try:
            while True:
                done = read_json(os.path.join(path, COMPLETE))
                if done:
                    return (yield from self.found(path, done, message["key"]))
                if (yield from self.claim(path, lock)):
                    break
                yield False
            found = yield from self.build(path, message)
            done = {"key": message["key"], "digest": found["digest"], "packages": found["about"]["packages"]}
            write_json(os.path.join(path, COMPLETE), done)
            os.unlink(os.path.join(path, BUILDING))
        finally:
            self.pulse = None
            lock.drop()
        return dict(found, status="built", seconds=time.monotonic() - began, changed={})

    def found(self, path: str, done: dict[str, Any], key: str) -> Step:
        """A whole environment: is it the one that is wanted, and still as it was built?"""
        if done.get("key") != key:
            raise Problem(
                "%s holds an environment of other requirements" % path, "choose another --venv, or remove it"
            )
        found = yield from self.installed(path)
        was, now = done.get("packages", {}), found["about"]["packages"]
        changed = {n: [was.get(n), now.get(n)] for n in {**was, **now} if was.get(n) != now.get(n)}
        return dict(found, status="present", seconds=0, changed=changed)

    def installed(self, path: str) -> Step:
        """What an environment has."""
        python = path + "/bin/python"
        return dict((yield from self.packages(python)), path=path, python=python)

    def claim(self, path: str, lock: Lock) -> Step:
        """Make the folder ours to build in. Returns False where it has to be looked at again."""
        try:
            os.mkdir(path)  # one only can, on every file system
            return True
        except FileExistsError:
            pass
        try:
            before = os.stat(path).st_ino
            others = [name for name in os.listdir(path) if not name.startswith(BUILDING)]
            left = read_json(os.path.join(path, BUILDING))
            if read_json(os.path.join(path, COMPLETE)) or os.stat(path).st_ino != before:
                return False  # without locks, all this may change while one looks
        except FileNotFoundError:
            return False
        if not left and others:
            raise Problem("%s is there, and was not made by muster prepare" % path, "choose another --venv")
        elsewhere = left and left.get("machine") != boot_id()
        if (elsewhere or not lock.supported) and (yield from self.alive(path, left)):
            return False
        if not left:
            return True  # empty
        self.progress("removing what an interrupted build left")
        try:
            os.rename(path, "%s.stale-%d-%s" % (path, os.getpid(), socket.gethostname()))  # one only can
        except FileNotFoundError:
            return False
        for stale in glob.glob(glob.escape(path) + ".stale-*"):
            yield from remove_tree(stale)
        return False

    def alive(self, path: str, left: dict[str, Any]) -> Step:
        """Whether somebody on another machine builds there: what this lock cannot tell, the pulse does."""
        self.progress("looking whether another host builds there")
        limit = time.monotonic() + SILENT
        while time.monotonic() < limit:
            yield False
            now = read_json(os.path.join(path, BUILDING))
            if now != left or read_json(os.path.join(path, COMPLETE)):
                return True
        return False

    def build(self, path: str, message: dict[str, Any]) -> Step:
        """A venv is not relocatable, so it is built in its place, and marked when it is whole."""
        self.pulse = {"path": os.path.join(path, BUILDING), "machine": boot_id(), "count": 0}
        self.pulse.update(hostname=socket.gethostname(), pid=os.getpid())
        write_json(self.pulse["path"], self.pulse)
        wheels = [os.path.join(self.cache, "wheels", each) for each in message["wheels"]]
        pip_wheel = [each for each in wheels if os.path.basename(each).startswith("pip-")]
        bare = message["lacks"] == "ensurepip"
        self.progress("making the environment")
        maker = [message["python"], "-I", "-m", "venv", *(["--without-pip"] if bare else []), path]
        code, lines = yield from self.program(maker)
        if code != 0:
            raise Problem("the environment cannot be made: %s" % last_words(lines), venv_hint(message))
        pip = ["-m", "pip"]
        if bare:
            if not pip_wheel:
                raise Problem("its Python has no pip and no ensurepip", venv_hint(message))
            pip = [pip_wheel[0] + "/pip"]
        asked = os.path.join(path, "muster-requirements.txt")
        with open(asked, "w") as file:
            file.write(message["requirements"])
        argv = [path + "/bin/python", "-I", *pip, "install", "--no-input", "--disable-pip-version-check"]
        argv += ["--no-warn-script-location", "--progress-bar", "off", "-r", asked]
        if message["constraints"]:
            with open(os.path.join(path, "muster-constraints.txt"), "w") as file:
                file.write(message["constraints"])
            argv += ["-c", file.name]
        if message["offline"]:
            argv += ["--no-index"]
        for folder in sorted({os.path.dirname(each) for each in wheels}):
            argv += ["--find-links", folder]
        unwanted = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PYTHONHOME", "PYTHONPATH")
        env = {name: value for name, value in os.environ.items() if name not in unwanted}
        if message["index"]:
            env["PIP_INDEX_URL"] = message["index"]  # not an argument: it may hold a password
        code, lines = yield from self.program(argv, env=env, say=True)
        if code != 0:
            raise Problem("pip: %s" % last_words(lines), pip_hint(lines, message))
        return (yield from self.installed(path))

    # --- trees of files ------------------------------------------------------------------------------------

    def place(self, root: list[str]) -> str:
        """Where a tree lies on this host: (base, name)."""
        base, name = root
        if base == "path":
            return os.path.abspath(os.path.expanduser(name))
        folder = os.path.join(self.cache, "wheels") if base == "wheels" else self.hub_folder(base)
        return inside(folder, name) if name else folder

    def hub_folder(self, base: str) -> str:
        """Where huggingface_hub and datasets keep what they fetched, by their own rules."""
        env = dict(os.environ, **self.env)
        cache = env.get("XDG_CACHE_HOME") or "~/.cache"
        home = env.get("HF_HOME") or os.path.join(cache, "huggingface")
        if base == "hub":
            found = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
        else:
            found = env.get("HF_DATASETS_CACHE") or os.path.join(home, "datasets")
        return os.path.abspath(os.path.expanduser(found))

    def marker(self, number: str) -> str:
        """Where something is written down. Each host has its own, for the home folder may be shared."""
        host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
        return os.path.join(self.cache, "prepared", "%s-%s.json" % (number, host))

    def fingerprint(self, path: str) -> list[int]:
        """By which a file is taken for unchanged without reading it."""
        about = os.stat(path)
        return [about.st_size, about.st_mtime_ns]

    def hashed(self, path: str, known: dict[str, Any]) -> Step:
        """A file's SHA-256, read only where size or time have changed since `known` was written."""
        before = known.get(path)
        now = self.fingerprint(path)
        if before and before[:2] == now:
            return before[2]
        digest = hashlib.sha256()
        yield from hash_file(path, digest)
        return digest.hexdigest()

    def do_scan(self, message: dict[str, Any]) -> Step:
        """Every file of a folder (or one file), with its hash; links that stay inside are kept as links."""
        root = self.place(message["root"])
        known = read_json(self.marker(message["marker"])).get("files", {})
        files: list[dict[str, Any]] = []
        remember: dict[str, Any] = {}
        if not os.path.exists(root):
            raise Problem("%s: no such file or folder" % root)
        names = [""] if os.path.isfile(root) else (yield from self.walk(root, message["root"][0]))
        for name in names:
            path = os.path.join(root, name) if name else root
            target = os.readlink(path) if name and os.path.islink(path) else None
            if target is not None and stays(root, name, target):
                files.append({"path": name, "link": target})
                continue
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise Problem("%s is neither a file nor a folder" % path, "take it out of the folder")
            digest = yield from self.hashed(path, known)
            files.append({"path": name, "size": os.path.getsize(path), "sha256": digest})
            remember[path] = [*self.fingerprint(path), digest]
        content = {"root": message["root"], "files": remember, "list": files}
        if read_json(self.marker(message["marker"])) != content:
            write_json(self.marker(message["marker"]), content)
        return {"files": files, "path": root}

    def walk(self, root: str, base: str) -> Step:
        """The names of what a folder holds, at any depth. Locks and unfinished parts are nobody's data."""
        found: list[str] = []
        for folder, folders, names in os.walk(root, onerror=raise_it):
            names += [name for name in folders if os.path.islink(os.path.join(folder, name))]
            folders[:] = sorted(name for name in folders if name not in names)
            for name in sorted(names):
                passing = name.startswith(".muster-") and name.endswith((".lock", ".part"))
                if not passing and not (base != "path" and name.endswith((".lock", ".incomplete"))):
                    found.append(os.path.relpath(os.path.join(folder, name), root))
            yield True
        return found

    def do_get(self, message: dict[str, Any]) -> Step:
        """A piece of a file of a tree."""
        root = self.place(message["root"])
        with open(inside(root, message["path"]) if message["path"] else root, "rb") as file:
            file.seek(message["offset"])
            data = file.read(message["bytes"])
        yield True
        return {"data": base64.b64encode(data).decode()}

    def do_cached(self, message: dict[str, Any]) -> Step:
        """Whether a thing of the hub is here as it was when it was fetched or copied."""
        yield True
        marker = read_json(self.marker(message["marker"]))
        try:
            whole = bool(marker) and all(
                self.fingerprint(path) == before[:2] for path, before in marker["files"].items()
            )
        except (OSError, KeyError):
            whole = False
        if not whole:
            return {"root": None}
        return {"root": marker["root"], "files": marker["list"], "path": self.place(marker["root"])}

    def do_compare(self, message: dict[str, Any]) -> Step:
        """Which files of a tree are not here. Takes the tree's lock where there are any (not to `look`)."""
        if self.receiver:
            raise Problem("another tree is still open")
        root = self.place(message["root"])
        files = message["files"]
        single = len(files) == 1 and not files[0]["path"]
        if single:  # one file: the tree is its folder
            files = [dict(files[0], path=os.path.basename(root))]
            root = os.path.dirname(root)
        lacks = yield from self.missing(root, files, message)
        size = sum(files[index].get("size", 0) for index in lacks)
        if not lacks or message.get("look"):
            return {"lacks": [[index, 0] for index in lacks], "bytes": size, "root": root}
        above = existing(root)
        if not os.access(above, os.W_OK):
            raise Problem("%s is not there, and %s cannot be written" % (root, above), "copy it by hand")
        free = shutil.disk_usage(above).free
        if size > free:
            what = "%s needs %.1f GB, and %.1f GB are free" % (root, size / 1e9, free / 1e9)
            raise Problem(what, "free some space there, or choose another disk")
        os.makedirs(root, exist_ok=True)
        lock = Lock(os.path.join(root, ".muster-tree.lock"))  # what is above may be somebody else's
        yield from lock.take(self.progress)
        receiver = Receiver(root, files, lock)
        try:
            for index in (yield from self.missing(root, files, message)):
                yield from self.resume(receiver, index)
        except BaseException:
            lock.drop(forget=True)
            raise
        self.receiver, self.opened = receiver, message
        offsets = [[index, offset] for index, (_, offset) in sorted(receiver.wanted.items())]
        return {"lacks": offsets, "bytes": sum(files[i]["size"] - at for i, at in offsets), "open": True}

    def missing(self, root: str, files: list[dict[str, Any]], message: dict[str, Any]) -> Step:
        """Indices of what is not there. Raises Problem where something else is there in its place."""
        known = read_json(self.marker(message["marker"])).get("files", {})
        lacks: list[int] = []
        differs: list[str] = []
        remember: dict[str, Any] = {}
        for index, wanted in enumerate(files):
            path = inside(root, wanted["path"])
            if "link" in wanted:
                same = os.path.islink(path) and os.readlink(path) == wanted["link"]
                if not os.path.lexists(path):
                    lacks.append(index)
                elif not same:
                    differs.append(path)
            elif not os.path.lexists(path):
                lacks.append(index)
            else:
                same = os.path.isfile(path) and os.path.getsize(path) == wanted["size"]
                digest = (yield from self.hashed(path, known)) if same else None
                if digest == wanted["sha256"]:
                    remember[path] = [*self.fingerprint(path), digest]
                elif wanted.get("replace") and os.path.isfile(path):
                    lacks.append(index)
                else:
                    differs.append(path)
        if differs:
            more = " and %d more" % (len(differs) - 1) if len(differs) > 1 else ""
            raise Problem(
                "%s%s differs from what the recipe's is, and nothing is written over it" % (differs[0], more),
                "remove it or rename it there, then run prepare again",
            )
        if not lacks:
            content = {"root": message["root"], "files": remember, "list": message["files"]}
            if read_json(self.marker(message["marker"])) != content:
                write_json(self.marker(message["marker"]), content)
        return lacks

    def resume(self, receiver: Receiver, index: int) -> Step:
        """Where a file goes on: at the end of the part that an interruption left."""
        wanted = receiver.files[index]
        if "link" in wanted:
            return
        digest, offset, part = hashlib.sha256(), 0, receiver.part(index)
        if os.path.isfile(part) and not os.path.islink(part):
            offset = os.path.getsize(part)
            if offset >= wanted["size"]:
                os.unlink(part)
                offset = 0
            yield from hash_file(part, digest, offset) if offset else iter(())
        receiver.wanted[index] = (digest, offset)

    def do_seal(self, message: dict[str, Any]) -> Step:
        """All has come: make the links, look at everything once more, write the marker."""
        receiver = self.receiver
        if receiver is None:
            raise Problem("no tree is open")
        self.receiver = None
        try:
            if receiver.problem:
                raise receiver.problem
            for wanted in receiver.files:
                path = inside(receiver.root, wanted["path"])
                if "link" in wanted and not os.path.lexists(path):
                    if not stays(receiver.root, wanted["path"], wanted["link"]):
                        raise Problem("%s would lead out of its folder" % path)
                    make_folder(receiver.root, wanted["path"])
                    os.symlink(wanted["link"], path)
            lacks = yield from self.missing(receiver.root, receiver.files, self.opened)
            if lacks:
                raise Problem("%d files did not come" % len(lacks), "run prepare again")
            return {"bytes": receiver.bytes, "count": receiver.count}
        finally:
            receiver.close()

    # --- the hub, and the rest -----------------------------------------------------------------------------

    def do_download(self, message: dict[str, Any]) -> Step:
        """Fetch from the hub, by the environment's own libraries; one at a time on this disk."""
        folder = self.hub_folder("datasets" if message["kind"] == "dataset" else "hub")
        os.makedirs(folder, exist_ok=True)
        lock = Lock(os.path.join(folder, ".muster-%s.lock" % message["marker"]))
        yield from lock.take(self.progress)
        try:
            again = yield from self.do_cached(message)
            if again["root"]:
                return again
            env = dict(os.environ, **self.env)
            python = shutil.which(os.path.expanduser(message["python"])) or message["python"]
            argv = [python, "-c", DOWNLOAD, message["kind"], message["name"]]
            code, lines = yield from self.program(argv, env=env, say=True)
            if code != 0:
                raise Problem(last_words(lines))
            root = json.loads(next(line for line in reversed(list(lines)) if line.startswith("[")))
            return dict((yield from self.do_scan(dict(message, root=root))), root=root)
        finally:
            lock.drop(forget=True)

    def do_scratch(self, message: dict[str, Any]) -> Step:
        """A folder on this host's own disk that nobody else can have planted: ours, and closed to others."""
        yield True
        place = message["base"]  # such as /tmp
        if not os.path.isdir(place):
            raise Problem("no folder %s" % place, "--kernel-cache of a folder that every host has")
        new = False
        for part in message["parts"]:
            place = os.path.join(place, part)
            try:
                os.mkdir(place, 0o700)
                new = True
            except FileExistsError:
                new = False
            about = os.lstat(place)
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
                raise Problem("%s is not ours alone" % place, "remove it there: compiled code is run from it")
        return {"path": place, "new": new}

    def do_unlock(self, message: dict[str, Any]) -> Step:
        """Remove locks that killed builds of PyTorch's extensions left: all would wait for them for ever.

        Who builds holds the lock file open, so one that nobody has open is stale. The kernel tells: it grants
        a write lease only where nobody else has the file open, in any container; /proc tells of those that
        can be seen. On a network file system somebody elsewhere may have it open: nothing is removed there.
        """
        env = dict(os.environ, **message["env"])
        cache = os.path.expanduser(env.get("XDG_CACHE_HOME") or "~/.cache")
        root = os.path.expanduser(env.get("TORCH_EXTENSIONS_DIR") or os.path.join(cache, "torch_extensions"))
        patterns = [os.path.join(glob.escape(root), each) for each in ("*/lock", "*/*/lock")]
        found = [each for pattern in patterns for each in glob.glob(pattern) if os.path.isfile(each)]
        if not found or file_system(root).startswith(REMOTE):
            return {"removed": []}
        held = set()
        for descriptor in glob.glob("/proc/[0-9]*/fd/*"):
            try:
                held.add(os.readlink(descriptor))
            except OSError:  # it is closed by now, or another user's
                pass
            yield True
        return {"removed": [e for e in found if os.path.realpath(e) not in held and remove_stale(e)]}

    def do_noted(self, message: dict[str, Any]) -> Step:
        """What was written down under a name."""
        yield True
        return {"content": read_json(self.marker(message["marker"]))}

    def do_note(self, message: dict[str, Any]) -> Step:
        """Write something down under a name."""
        yield True
        write_json(self.marker(message["marker"]), message["content"])
        return {}

    def do_remove(self, message: dict[str, Any]) -> Step:
        """Remove a folder of a warm-up job; nothing else can be named."""
        path = inside(os.path.join(self.cache, "warm"), message["name"])
        if os.path.isdir(path) and not os.path.islink(path):
            yield from remove_tree(path)
        return {}


def raise_it(error: OSError) -> None:
    """os.walk lets unreadable folders pass silently otherwise."""
    raise error


def stays(root: str, name: str, target: str) -> bool:
    """Whether a link at root/name to a relative target stays inside of root, by its words alone."""
    if os.path.isabs(target):
        return False
    ends = os.path.normpath(os.path.join(os.path.dirname(name), target))
    return ends != ".." and not ends.startswith("../")


def last_words(lines: list[str]) -> str:
    """The line that says what went wrong."""
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or list(lines) or ["no reason given"])[-1].replace("ERROR: ", "")


def venv_hint(message: dict[str, Any]) -> str:
    """Debian's python3 comes without what makes environments."""
    minor = ".".join(message["version"].split(".")[:2])
    return "there: apt install python%s-venv; or --wheels of a folder that has pip's wheel" % minor


def pip_hint(lines: list[str], message: dict[str, Any]) -> str:
    """What to do about pip's usual troubles."""
    text = "\n".join(lines)
    if "No space left" in text:
        return "free some space there, or choose another disk by --venv"
    if message["offline"]:
        return "the folder of --wheels lacks it: pip download -d FOLDER for the hosts' Python and platform"
    if "No matching distribution" in text or "Could not find a version" in text:
        return "is there such a version for Python %s there? no network: --wheels" % message["version"]
    return "--index URL of an index that it can reach, or --wheels FOLDER"


if __name__ == "__main__":
    raise SystemExit(Provision().run())
