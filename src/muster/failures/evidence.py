"""The signs of a log that count, and which of them decides. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from muster.failures.launchers import ASKED_TO_END, MPI_SIGNAL
from muster.failures.sign import MISTAKE, ORDER, Sign
from muster.failures.table import Weight, find
from muster.failures.wording import HAPPENED, LEVEL, before_it, is_exception

# A program that the kernel killed, and that is none of those by which a training runs.
_BYSTANDER = re.compile(
    r"Out of memory: Kill(?:ed)? process \d+ \((?!python|pt_|ray|torch|deepspeed|accelerate|java|srun|slurm|"
    r"mpi|orted|prted|hydra|\S*train|ba?sh\)|sh\))"
)
# Ways to end that one host does not cause in another: a host with one of them failed by itself.
_ALIKE: tuple[frozenset[Weight], ...] = (frozenset(("killed", "crash")),)
_BY_ITSELF: tuple[Weight, ...] = ("cause", "killed", "crash", "exception")
_ASSERTED = "index_out_of_range"
_WAITED = "nccl_watchdog_timeout"
Key = tuple[Weight, str | None, int | None]  # with the host, or else a pod, and the rank


@dataclass
class KeptSigns:
    """The signs that were read in a log, and what follows from them."""

    now: dict[Key, Sign] = field(default_factory=dict)
    earlier: dict[Key, Sign] = field(default_factory=dict)  # before the last mark
    kept: dict[Key, Sign] = field(default_factory=dict)  # a scheduler's word, after which steps may be told
    traceback: bool = False
    before: list[Sign] = field(default_factory=list)  # what ended runs before the last one in this log
    since: int = 0  # marks of progress after the last one
    broke: bool = False  # it says in so many words that a process of the job did not end well
    first: int | None = None  # the rank that failed first, by torchrun's account
    end: int | None = None  # the number of the first line that says that the training has ended
    last_end: int | None = None  # and of the first one after the last step

    def decisive(self) -> Sign | None:
        """Return the sign that explains most: a cause before what it led to; None: there is no sign.

        The scheduler's words come before the signals that it sent; a signal that a host's program brought
        upon itself before the exceptions of others. Where torchrun reports which rank failed first, and that
        one gives a reason of its own, or none, it is this.
        """
        best = min(self._all(), key=lambda sign: sign.order, default=None)
        best = self._of_the_job(best) if best else None
        best = self._raised_elsewhere(self._raised_before_it(best)) if best else None
        best = self._before(self._raised_after(best)) if best else None
        if best is None or self.first is None or best.weight not in (*_BY_ITSELF, "symptom", "exit"):
            return best
        own = [sign for sign in self._all() if sign.rank == self.first]
        first = min(own, key=lambda sign: ORDER[sign.weight], default=best)
        if best.failure == _ASSERTED and first.failure == "illegal_memory_access":
            return best  # what the GPU itself says, of whichever rank
        nobodys = best.rank is None and best.weight in _BY_ITSELF  # who says it may be that very rank
        return best if first.weight == "symptom" or (first.weight == "exit" and nobodys) else first

    def offhand(self, sign: Sign) -> bool:
        """Return whether a program only mentions in passing what else would be the cause: not by an
        exception, a level or an exit, and nothing that befalls a host."""
        entry = sign.entry
        plain = sign.weight == "cause" and not (is_exception(sign.text) or self.traceback or self.broke)
        return plain and entry is not None and entry.blame != "host" and not LEVEL.search(sign.text)

    def in_a_sentence(self, sign: Sign) -> bool:
        """Return whether the words of a failure are in the middle of a sentence that does not say that it
        happened."""
        if sign.weight != "cause" or sign.code or is_exception(sign.text):
            return False
        entry = find(sign.text)
        begin = before_it(sign.text, entry) if entry and not LEVEL.search(sign.text) else None
        return begin is not None and bool(re.search(r"\w [\"'`]?$", begin)) and not HAPPENED.search(begin)

    def passed(self, sign: Sign) -> bool:
        """Return whether a mark of progress came after a sign: one, since two leave none."""
        return not self.stands(sign) and any(each is sign for each in self.earlier.values())

    def ended_by(self, sign: Sign) -> bool:
        """Return whether an exception surely ended a process of the last run in this log."""
        return sign.hooked and not sign.is_echo and sign not in self.before

    def asked(self, sign: Sign | None) -> bool:
        """Return whether a program says that it was asked to end, and tells no step after that: what it says
        of its end is no end of the training, unless it had said that before."""
        if sign is None or sign.weight != "external" or not ASKED_TO_END.search(sign.text):
            return False
        return self.last_end is None or (sign.number or 0) < self.last_end

    def ended_after(self, sign: Sign | None) -> bool:
        """Return whether a program that was told that its time or place is over said its end after that."""
        if sign is None or sign.weight != "limit" or self.last_end is None:
            return False
        return (sign.number or 0) < self.last_end

    def stands(self, sign: Sign) -> bool:
        """Return whether a sign is a scheduler's word on the end, whatever the program does after it."""
        return any(each is sign for each in self.kept.values())

    def waits_after_the_end(self) -> str:
        """Return the line that tells of a rank which waited in vain for others when the training had ended;
        empty: there is none. That of others' connections follows from their own end."""
        late = [each for each in self.now.values() if each.failure == _WAITED]
        return next((each.text for each in late if self.last_end and (each.number or 0) > self.last_end), "")

    def after_the_end(self) -> Sign | None:
        """Return the first exception of a traceback that was raised when a training had ended, or else the
        scheduler's word that it ended the job then; None: there is none, or only what follows from the end of
        other ranks."""
        end = self.end
        if end is None:
            return None
        late = [each for each in self.now.values() if (each.number or 0) > end]
        raised = [each for each in late if each.weight in ("cause", "exception") and self.traceback]
        first = next((each for each in raised if each.code or is_exception(each.text)), None)
        return first or next((each for each in late if each.scheduled), None)

    def _of_the_job(self, best: Sign) -> Sign:
        """Return another cause where a program was killed for want of memory that is no training's. Else the
        same sign."""
        if not _BYSTANDER.search(best.text):
            return best
        causes = (each for each in self._all() if each.weight == "cause" and each is not best)
        return next((each for each in causes if not _BYSTANDER.search(each.text)), best)

    def _raised_elsewhere(self, best: Sign) -> Sign:
        """Return an exception that nothing caught in the program of another rank than the one that was ended
        from outside: the launcher ended that one because of it. Else the same sign."""
        if best.weight != "external":
            return best
        raised = (each for each in self._all() if each.weight == "exception" and each.uncaught and each.own)
        return next((each for each in raised if (each.host, each.rank) != (best.host, best.rank)), best)

    def _raised_before_it(self, best: Sign) -> Sign:
        """Return an exception that nothing caught in a program of MPI's instead of a SIGKILL of which its
        launcher gives account: that ends the other ranks so because of it. Else the same sign."""
        raised = (each for each in self._all() if each.weight == "exception")
        return next((each for each in raised if best.follows(each)), best)

    def _raised_after(self, best: Sign) -> Sign:
        """Return a mistake of the program, or what surely ended it, raised after a line without a traceback
        and without a level: the program got over that. What befell a host counts still, unless a step was
        made after it. Else the same sign."""
        if best.weight != "cause" or best.code or LEVEL.search(best.text):
            return best
        raised = (each for each in self.now.values() if each.weight == "exception")
        later = [each for each in raised if (each.number or 0) > (best.number or 0)]
        if self.in_a_sentence(best):
            return next(iter(later), best)
        entry = best.entry
        on = self.passed(best) or (entry is not None and entry.blame != "host")
        sure = (each for each in later if each.code and (MISTAKE.match(each.text) or (on and each.uncaught)))
        return next(sure, best)

    def _before(self, best: Sign) -> Sign:
        """Return an exception that another rank raised earlier, by its time stamps, than one whose name is in
        the table. Else the same sign."""
        entry = best.entry
        if entry is None or entry.blame != "work" or not best.code or best.when is None:
            return best
        raised = (each for each in self._all() if each.weight == "exception" and each.code)
        earlier = [each for each in raised if each.when is not None and each.when < best.when]
        other = [each for each in earlier if (each.host, each.rank) != (best.host, best.rank)]
        return min(other, key=lambda each: each.when or 0.0, default=best)

    @property
    def raising(self) -> bool:
        """Whether a traceback is among the lines that count."""
        return self.traceback and self.since < 2

    def by_weight(self) -> list[Sign]:
        """Return all signs, those that explain most first."""
        return sorted(self._all(), key=lambda sign: sign.order)

    def by_themselves(self) -> tuple[tuple[str, str | None], ...]:
        """Return (host, failure) of all hosts that ended in the decisive way, and not because of another."""
        best = self.decisive()
        if best is None:
            return ()
        alike = next((each for each in _ALIKE if best.weight in each), frozenset((best.weight,)))
        failures: dict[str, str | None] = {}
        for sign in [best, *(sign for sign in self._all() if sign.weight in alike)]:
            if sign.host:
                failures.setdefault(sign.host, sign.failure)
        return tuple(failures.items())

    def _all(self) -> list[Sign]:
        """Return all signs, the earliest first. Where a program raised an exception and then crashed, it is
        the exception; where MPI's launcher says that a process crashed, it killed the others itself."""
        signs = self.earlier | {key: sign for key, sign in self.now.items() if key not in self.earlier}
        signs |= self.kept
        raised = {host for weight, host, _ in signs if weight == "exception"}
        of_mpi = [each for each in signs.values() if MPI_SIGNAL.search(each.text)]
        crashed = any(each.weight == "crash" for each in of_mpi)
        return [
            sign
            for sign in signs.values()
            if (sign.weight != "crash" or sign.host not in raised)
            and not (crashed and sign.weight == "killed" and sign in of_mpi)
        ]
