"""How a run ended, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muster.core.state import State
from muster.core.units import counted, format_seconds
from muster.reports.rundata import RunData
from muster.results.figures import Figure


@dataclass(frozen=True)
class Headline:
    """The outcome: a mark, a tone (good, bad, calm), a sentence, and facts below it."""

    mark: str
    tone: str
    title: str
    facts: tuple[tuple[str, str], ...] = ()


def ranges(numbers: Sequence[int]) -> str:
    """Return numbers as ranges: 0, 1, 2, 5 -> '0–2, 5'."""
    parts: list[list[int]] = []
    for each in sorted(set(numbers)):
        if parts and each == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], each]
        else:
            parts.append([each])
    return ", ".join(f"{part[0]}–{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts) or "none"


def headline(data: RunData) -> Headline:
    """Return how the run ended, in a sentence; for a failure what, where, on which host, and the hint."""
    result = data.result
    failure = result.failure if result else None
    steps = "no finished optimizer step"
    if result and result.steps:
        steps = counted(result.steps, "optimizer step")
    elif result and result.fabric:
        steps = counted(len(set(result.fabric.seconds) - {"rendezvous"}), "measurement")
    state = data.state
    if state.good and result and result.caveats:
        return Headline(state.mark, "calm", f"The run {result.outcome}")
    if state.good and result:
        took = format_seconds(result.seconds.total)
        return Headline(state.mark, state.tone, f"The run {state.words}: {steps} in {took}")
    title = f"The run {state.words} after {steps}"
    if state is State.RUNNING:
        return Headline(state.mark, state.tone, f"The run {state.words}: {steps} so far")
    if state is State.ELSEWHERE:
        what = "its controller is on another machine: from here it is unknown whether the run still goes on"
        return Headline(state.mark, state.tone, title, (("why", what),))
    if state is State.INTERRUPTED:
        facts = (("what", "there is no result, and its controller no longer runs"),)
        hint = (("hint", f"`muster resume {data.id}` continues from the last checkpoint, if there is one"),)
        return Headline(state.mark, state.tone, title, facts + hint)
    if failure is None:
        return Headline(state.mark, state.tone, title)
    lines: list[tuple[str, str | None]] = [("where", failure.where), ("host", failure.host)]
    if state is State.FAILED:
        title = f"Failed: {shortened(failure.what)}"
        lines.append(("after", steps))
    if failure.what not in title:
        lines.insert(0, ("what", failure.what))
    at = failure.evidence.place if failure.evidence else None
    lines += [("at", at), ("hint", failure.hint), ("known as", failure.id)]
    return Headline(state.mark, state.tone, title, tuple((name, value) for name, value in lines if value))


def shortened(text: str, most: int = 110) -> str:
    """Return the first line of a text; of a long one its first part, or its first words."""
    line = " ".join((text.strip().splitlines() or [""])[0].split())
    if len(line) <= most:
        return line
    head = line[:most]
    for end in (". ", ": ", "; ", ", ", " "):
        cut = head.rfind(end)
        if cut > most // 4:
            return head[:cut] + ("" if end in (". ", ": ") else " …")
    return head + "…"


def unknown(groups: Sequence[tuple[str, Sequence[Figure]]]) -> list[str]:
    """Return the names of the figures that were not measured, with their groups."""
    lines = []
    for name, figures in groups:
        names = [figure.name for figure in figures if not figure.measured]
        lines += [f"{name}: {', '.join(names)}"] if names else []
    return lines
