"""The end of a run that measured the fabric: who is to blame, and its tables as files."""

from __future__ import annotations

from muster.core.fabric.result import FabricRun, suspects, wrong_words
from muster.core.job import Job
from muster.core.result import Failure, Result
from muster.core.state import State
from muster.fabric.blame import Endings
from muster.reports.fabric_tables import files
from muster.results.fold import EventFold
from muster.store.atomic import write_text
from muster.store.runfolder import RunFolder


def judged(result: Result, folder: EventFold, job: Job) -> Result:
    """Whoever others missed is to blame for a failure; wrong values are one, however smoothly they came."""
    endings = Endings(job.placements, list(folder.measured), {})
    if result.status is State.FAILED and result.failure is not None:
        accused = endings.accused()
        if accused and result.failure.host not in accused:
            failure = _unanswered(endings, accused)
            return result.model_copy(update={"failure": failure})
    if result.status.good and result.fabric is not None:
        wrong = _wrong(result.fabric)
        if wrong is not None:
            return result.model_copy(update={"status": State.FAILED, "failure": wrong})
    return result


def _unanswered(endings: Endings, accused: set[str]) -> Failure:
    for _, event in endings.of("missing"):
        for rank in event["ranks"]:
            host = endings.host_of(rank)
            if host in accused:
                return Failure(
                    what=f"rank {rank} did not answer the other ranks' check at {event['question']}",
                    where=f"rank {rank}",
                    host=host,
                    hint="it hangs or is unreachable: see its log in the run folder, and run `muster check`",
                )
    raise AssertionError("whoever is accused was missed")


def _wrong(fabric: FabricRun) -> Failure | None:
    """The first host that wrong values point at."""
    hint = "leave the host out; test its memory, device and network card"
    if fabric.wrong:
        guilty = sorted(suspects(fabric.wrong))
        seen = next(each for each in fabric.wrong if guilty[0] in (each.host, each.source_host))
        others = f" (and {', '.join(guilty[1:])})" if guilty[1:] else ""
        return Failure(what=f"wrong values{others}: {wrong_words(seen)}", host=guilty[0], hint=hint)
    for each in fabric.matmul:
        if not each.right:
            what = f"wrong values: an exact product in {each.precision} differs on {each.device}"
            return Failure(what=what, where=f"rank {each.rank}", host=each.host, hint=hint)
    return None


def write_tables(run: RunFolder, result: Result) -> None:
    """fabric/*.csv: the sweep, the pairs as matrices, the products."""
    if result.fabric is None:
        return
    for old in run.fabric.glob("*.csv"):  # of an attempt before this one
        old.unlink()
    for name, text in files(result.fabric).items():
        run.fabric.mkdir(exist_ok=True)
        write_text(run.fabric / name, text)
