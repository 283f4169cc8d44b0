"""The probe: asks a bare host what `muster check` wants to know, sends the answers, and leaves nothing
behind.

It is sent over the connection with talk.py and the families' own probes. It speaks JSON lines:
  in   probe, peers, bye
  out  answers
Every family's probe runs in its own thread and has the same time: one that hangs (a dead NFS mount, a dead
driver) delays no other and is answered by {"error": ...}. It ends when it is asked to, when its input closes,
and when there was no question for IDLE seconds; what it started ends with it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

from .talk import Channel

TYPE_CHECKING = False  # of typing, which takes longer to import than a family takes to answer
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

IDLE = 900.0  # seconds without a question after which the controller is taken for dead
LIMIT = 1 << 20  # bytes that are kept of a file or of a program's output
PARTING = 2.0  # seconds for what at_end was given

_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

_running: dict[int, Any] = {}
_endings: list[Callable[[], Any]] = []
_lock = threading.Lock()


# --- what families may call ----------------------------------------------------------------------------


def text(path: str, limit: int = LIMIT) -> str | None:
    """Return a file's text without surrounding white space, or None where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (OSError, ValueError):
        return None
    try:
        parts = []
        while limit > 0:
            part = os.read(descriptor, min(limit, 1 << 16))
            if not part:
                break
            parts.append(part)
            limit -= len(part)
        return b"".join(parts).decode("utf-8", "replace").strip()
    except OSError:
        return None
    finally:
        os.close(descriptor)


def run(argv: list[str], seconds: float = 5.0) -> tuple[int | None, str, str]:
    """Run a program. Return exit code, stdout and stderr. The code is None where it did not start, or did not
    end in time: then it was killed with all that it started, and stderr says so."""
    import subprocess

    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_dier(),
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return None, "", f"cannot start {argv[0]}: {getattr(error, 'strerror', None) or error}"
    with _lock:
        _running[child.pid] = child
    try:
        out, err = child.communicate(timeout=seconds)
        code: int | None = child.returncode
    except subprocess.TimeoutExpired:
        _kill(child)
        code, out, err = None, b"", f"{argv[0]} did not end within {seconds:g} s".encode()
    finally:
        with _lock:
            _running.pop(child.pid, None)
    return code, out[:LIMIT].decode("utf-8", "replace"), err[:LIMIT].decode("utf-8", "replace")


def at_end(action: Callable[[], Any]) -> None:
    """Call `action` before the probe leaves, such as to remove a file. The last one given is called first."""
    with _lock:
        _endings.append(action)


# --- the program ---------------------------------------------------------------------------------------


def _dier() -> Callable[[], None]:
    """Return a function for a child to call, so that the kernel ends it when the probe is killed."""
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return lambda: None
    return lambda: prctl(1, 9)


def _kill(child: Any) -> None:
    """End a program and its process group; it leads one of its own."""
    try:
        os.killpg(child.pid, 9)
    except OSError:
        pass
    for stream in (child.stdout, child.stderr):
        try:
            stream.close()
        except OSError:
            pass
    if child.poll() is None:
        try:
            child.wait(1.0)
        except Exception:  # unkillable: in the kernel, on a dead device
            pass


class _Probe:
    """Takes questions from the controller, and answers them."""

    def __init__(self, families: dict[str, Any], heard: float) -> None:
        self.families = families
        self.heard = heard
        self.channel = Channel()
        self.channel.make_wakes()
        self.questions: list[dict[str, Any]] = []

    def listen(self) -> dict[str, Any] | None:
        """Return the next question, or None at the end."""
        limit = time.monotonic() + IDLE
        while not self.questions:
            left = limit - time.monotonic()
            if self.channel.closed or left <= 0:
                return None
            self.questions += self.channel.listen(left)
        message = self.questions.pop(0)
        return None if message.get("op") == "bye" else message

    def ask(self, name: str, function: Any, ask: dict[str, Any], answers: dict[str, Any]) -> None:
        try:
            answer = function(ask)
            json.dumps(answer)
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers[name] = answer
        self.channel.wake()

    def answer(self, functions: dict[str, Any], asks: dict[str, dict[str, Any]], limits: Any) -> None:
        """Run the functions at the same time, each for at most its `limits` (seconds), and send the answers.
        """
        answers: dict[str, Any] = {}
        started = time.monotonic()
        for name, function in functions.items():
            arguments = (name, function, asks[name], answers)
            threading.Thread(target=self.ask, args=arguments, daemon=True).start()
        while len(answers) < len(functions):
            waits = [limits[name] for name in functions if name not in answers]
            left = started + max(waits, default=0.0) - time.monotonic()
            if self.channel.closed:
                return  # nobody is there to hear
            if left <= 0:
                break
            self.questions += self.channel.listen(left)
        late = {name: {"error": f"no answer within {limits[name]:g} s"} for name in functions}
        complete = {name: answers.get(name, late[name]) for name in functions}
        self.channel.say("answers", answers=complete, heard=self.heard)
        self.channel.send_all(IDLE)

    def main(self) -> None:
        """Answer until the controller has no more questions."""
        while True:
            message = self.listen()
            if message is None:
                return
            second = message["op"] == "peers"
            kind = "probe_peers" if second else "probe"
            functions, asks, limits = {}, {}, {}
            longer = message.get("longer") or {}
            for name in message["families"]:
                functions[name] = self.families[name][kind]
                asks[name] = dict(message["ask"])
                limits[name] = longer.get(name, message["seconds"])
                if name in longer:
                    asks[name]["timeout"] = longer[name]
                if second:
                    asks[name]["peers"] = message["peers"].get(name, {})
            self.answer(functions, asks, limits)
            if not second and not message["stay"]:
                return

    def end(self) -> None:
        """Clean up, and leave without waiting for threads that hang."""
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)

        def tidy() -> None:
            while _endings:
                try:
                    _endings.pop()()
                except Exception:
                    pass

        for child in list(_running.values()):
            _kill(child)
        if _endings:
            thread = threading.Thread(target=tidy, daemon=True)
            thread.start()
            thread.join(PARTING)


def _leave(number: int, frame: Any) -> None:
    """End the probe by a signal, after it has removed what it has to."""
    raise SystemExit(1)


def _space(name: str, program: Any) -> dict[str, Any]:
    """Return a family's functions, with the helpers that they may call."""
    space: dict[str, Any] = {"__name__": "muster_probe_" + name, "text": text, "run": run, "at_end": at_end}
    try:
        exec(program, space)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"

        def refuse(ask: dict[str, Any]) -> dict[str, Any]:
            return {"error": why}

        space["probe"] = space["probe_peers"] = refuse
    return space


def main(families: dict[str, Any], heard: float) -> None:
    """Run the probe. `families`: name -> what defines `probe`, `probe_peers` or both, as text or compiled.
    `heard`: when it arrived, by this host's clock."""
    for number in _ENDS:
        signal.signal(number, _leave)
    probe = _Probe({name: _space(name, program) for name, program in families.items()}, heard)
    status = 1
    try:
        probe.main()
        status = 0
    except (OSError, ValueError, KeyError) as error:  # the controller has left, or talks nonsense
        sys.stderr.write(f"muster probe: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
    finally:
        probe.end()
        os._exit(status)
