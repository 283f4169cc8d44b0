"""Files of a job on its host: code that is sent to it, and what its ranks write."""

from __future__ import annotations

import binascii
import errno
import os
import shutil
import threading
import time

from .talk import Channel, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Set

# How the types of file systems begin that several machines may share; the same as in worker/locks.py.
REMOTE = (
    "nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "smbfs", "9p", "afs", "gluster", "pvfs2",
    "orangefs", "panfs", "weka", "virtiofs", "fuse.gluster", "fuse.sshfs", "fuse.ceph", "fuse.juicefs",
)  # fmt: skip
KEPT_DAYS = 30  # that a file of code is kept on a host after it was used last


class Tail:
    """Reads the complete lines that were appended to a growing file."""

    def __init__(self, path: str, kind: str, rank: Optional[int]) -> None:
        self.path, self.kind, self.rank = path, kind, rank
        self.offset = 0

    def left(self) -> int:
        """Return the bytes that were not read yet; 0 for a file that does not exist."""
        try:
            return max(0, os.stat(self.path).st_size - self.offset)
        except OSError:
            return 0

    def read(self, final: bool = False, limit: int = 256 * 1024) -> List[str]:
        """Return the lines since the last call; `final` includes an unfinished last line."""
        if not self.left():
            return []
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read(limit)
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        if self.kind == "log":  # a progress bar's lines end with CR alone; a last one may be half of CRLF
            end = max(end, data.rfind(b"\r", 0, max(0, len(data) - 1)) + 1)
        if end == 0 and self.kind == "event" and len(data) == limit:
            return self.read(final, limit * 4)  # an event is sent whole, however long
        if end == 0 and self.kind == "log" and (final or len(data) == limit):
            end = len(data)
        self.offset += end
        text = data[:end].decode("utf-8", "replace")
        if self.kind == "log":
            return text.splitlines()
        return text.split("\n")[:-1]  # JSON may hold other line ends, such as U+2028


def new_folder(path: str) -> None:
    """Make an empty folder. What is there is left from before, and none of it may be taken for this job's."""
    try:
        if os.path.isdir(path):
            shutil.rmtree(path)
        os.makedirs(path)
    except OSError as error:
        raise Problem("%s cannot be made anew: %s" % (path, error.strerror), "remove it there")


def full_disk(error: Exception) -> Optional[str]:
    """Return disk_full where that is the cause; else None."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "disk_full" if full else None


def remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def link(path: str, name: str) -> bool:
    """Give a file another name. Return whether it has it; not on a file system without hard links. Raises
    FileNotFoundError."""
    try:
        os.link(path, name)
    except FileExistsError:
        pass
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True


def existing(path: str) -> str:
    """Return the nearest existing folder above (or at) `path`."""
    while not os.path.isdir(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def free_bytes(folder: str) -> Optional[int]:
    """Return the free bytes of a folder's file system; None where there is no such folder."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return None
    return stat.f_bavail * stat.f_frsize


def hash_file(path: str) -> str:
    """Return the SHA-256 of a file."""
    import hashlib

    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


class Brought:
    """The files that the controller sends: contents are kept on the host from job to job, by their digests.

    `base`, `token`: the job's folder and token; `kept`: the folder of the contents; `over`: returns whether
    the job has ended.
    """

    def __init__(
        self, channel: Channel, base: str, token: str, kept: str, over: Callable[[], bool] = bool
    ) -> None:
        self.channel, self.base, self.token, self.kept, self.over = channel, base, token, kept, over
        self.tree = {}  # type: Dict[str, Any]
        self.lacks: Set[str] = set()

    def bring(self, order: Dict[str, Any]) -> None:
        """Take a list of files, and send which contents this host has not kept from before."""
        self.tree = order

        def look() -> None:
            os.makedirs(self.kept, exist_ok=True)
            self.lacks = {each[2] for each in order["files"] if not self.has(each[2])}
            self.channel.post("lacks", digests=sorted(self.lacks))
            if not self.lacks:
                self.assemble()

        self.in_thread(look)

    def kept_at(self, digest: str) -> str:
        return os.path.join(self.kept, digest)

    def part_of(self, digest: str) -> str:
        """Return the path of a content that is this job's own until its files are written: hosts and commands
        may share the folder, and one of them removes what it needs no more."""
        return "%s.%s" % (self.kept_at(digest), self.token)

    def has(self, digest: str) -> bool:
        """Return whether the content is kept. It stays kept from now on for as long as a new one."""
        try:
            os.utime(self.kept_at(digest))
            link(self.kept_at(digest), self.part_of(digest))
        except OSError:
            return False
        return True

    def blob(self, order: Dict[str, Any]) -> None:
        """Write a part of a file's content."""
        digest = order["digest"]
        part = self.part_of(digest)
        with open(part, "ab") as file:
            file.write(binascii.a2b_base64(order["data"]))
        if not order["last"]:
            return
        if not link(part, self.kept_at(digest)):
            os.replace(part, self.kept_at(digest))  # whole, or not at all
        self.lacks.discard(digest)
        if not self.lacks:
            self.in_thread(self.assemble)

    def assemble(self) -> None:
        """Write the files into their folder, each content verified; delete contents that were not used for
        long."""
        import hashlib

        place = os.path.join(self.base, "code")
        new_folder(place)
        for path, mode, digest, _ in self.tree["files"]:
            if self.over():  # the job has ended, and its folder may be gone
                return
            target = os.path.join(place, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            kept, made = self.kept_at(digest), hashlib.sha256()
            content = next(filter(os.path.exists, (self.part_of(digest), kept)), None)
            if content is None:
                what = "%s is gone: another command that brought the same file has removed it" % kept
                raise Problem(what, "start again: it is sent anew")
            with open(content, "rb") as source, open(target, "wb") as copy:
                for block in iter(lambda: source.read(1 << 20), b""):
                    made.update(block)
                    copy.write(block)
            if made.hexdigest() != digest:
                remove(kept)
                raise Problem("%s came damaged" % path, "start again: it is sent anew")
            os.chmod(target, mode)
        self.forget_parts()
        limit = time.time() - KEPT_DAYS * 86400
        for entry in os.scandir(self.kept):
            try:
                if entry.stat().st_mtime < limit:
                    os.unlink(entry.path)
            except OSError:  # another job's agent was here before
                pass
        self.channel.post("brought")

    def in_thread(self, work: Callable[[], None]) -> None:
        """Work in a thread while signs of life go on; errors are sent to the controller."""

        def run() -> None:
            try:
                work()
            except Problem as problem:
                self.channel.post("error", what=str(problem), hint=problem.hint, id=None)
            except Exception as error:
                what = "files cannot be written: %s: %s" % (type(error).__name__, error)
                self.channel.post("error", what=what, hint=None, id=full_disk(error))

        threading.Thread(target=run, daemon=True).start()

    def forget_parts(self) -> None:
        """Remove what is this job's own of the contents."""
        for _, _, digest, _ in self.tree.get("files", ()):
            remove(self.part_of(digest))
