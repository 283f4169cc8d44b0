"""The state of a run, a step of a pipeline, a job of a bench or a log."""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple

Tone = Literal["good", "calm", "bad"]


class State(str, Enum):
    """A state. It equals its word, which files and SQL conditions use."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    TIMEOUT = "timeout"
    # Without a result.
    NOT_BEGUN = "not begun"
    SUBMITTED = "submitted"
    CANCELLED = "cancelled"
    RUNNING = "running"
    ELSEWHERE = "elsewhere"  # the controller is on another machine
    INTERRUPTED = "interrupted"  # no controller
    DAMAGED = "damaged"
    # Of a log.
    UNREADABLE = "unreadable"

    def __str__(self) -> str:
        """Return the word, under every version of Python."""
        return self.value

    def __format__(self, form: str) -> str:
        """Return the word, formatted as text."""
        return format(self.value, form)

    @property
    def good(self) -> bool:
        """Whether what was asked for was done."""
        return self is State.SUCCEEDED

    @property
    def over(self) -> bool:
        """Whether nothing more happens by itself."""
        return _FACTS[self].over

    @property
    def supervised(self) -> bool:
        """Whether a controller works on it, as far as this machine can see."""
        return self in (State.RUNNING, State.ELSEWHERE)

    @property
    def exit_code(self) -> int:
        """The exit code of a verb that ran it: 0 where it succeeded, 1 otherwise."""
        return 0 if self.good else 1

    @property
    def words(self) -> str:
        """The rest of a sentence that begins with "The run"."""
        return _FACTS[self].words

    @property
    def mark(self) -> str:
        """The character in front of that sentence on a page."""
        return _FACTS[self].mark

    @property
    def tone(self) -> Tone:
        """Whether that is good, bad or neither."""
        return _FACTS[self].tone

    @property
    def colour(self) -> str:
        """The colour of the word in a terminal."""
        return {"good": "green", "calm": "cyan", "bad": "red"}[self.tone]


class _Facts(NamedTuple):
    over: bool
    words: str
    mark: str
    tone: Tone


_FACTS = {
    State.SUCCEEDED: _Facts(True, "succeeded", "✓", "good"),
    State.FAILED: _Facts(True, "failed", "✕", "bad"),
    State.STOPPED: _Facts(True, "was stopped", "■", "calm"),
    State.TIMEOUT: _Facts(True, "ran out of time", "✕", "bad"),
    State.NOT_BEGUN: _Facts(False, "has not begun", "…", "calm"),
    State.SUBMITTED: _Facts(False, "waits for the batch system", "…", "calm"),
    State.CANCELLED: _Facts(True, "was cancelled before it began", "■", "calm"),
    State.RUNNING: _Facts(False, "is in progress", "…", "calm"),
    State.ELSEWHERE: _Facts(False, "has no result yet", "…", "calm"),
    State.INTERRUPTED: _Facts(True, "was interrupted", "✕", "bad"),
    State.DAMAGED: _Facts(True, "has a file that cannot be read", "✕", "bad"),
    State.UNREADABLE: _Facts(True, "cannot be read", "✕", "bad"),
}

RunEnd = Literal[State.SUCCEEDED, State.FAILED, State.STOPPED, State.TIMEOUT]
JobEnd = Literal[State.SUCCEEDED, State.FAILED, State.TIMEOUT]
LogEnd = Literal[State.SUCCEEDED, State.FAILED, State.TIMEOUT, State.UNREADABLE]
