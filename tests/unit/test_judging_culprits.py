"""Jobs that say themselves whose fault it was that they failed."""

from __future__ import annotations

from muster.core.state import State
from muster.judging import Observation, Topology, judge
from tests.unit.test_judging_verdict import FLEET, HOSTS, Book, of

TO_BLAME = "its jobs fail with errors that name this host"


def test_logs_that_name_a_culprit_spare_its_peers() -> None:
    book = Book()
    book.ring(0)
    book.ring(1)
    whole = tuple(HOSTS)
    book.failed(*whole, culprits=("n03",))
    book.failed(*whole, culprits=("n03",))
    found = book.verdicts()
    assert [each.subject for each in found.accused] == [("n03",)]
    verdict = of(found, "n03")
    assert (verdict.condition, verdict.kind, verdict.reason) == ("failing", "host", TO_BLAME)
    peers = [each.peers for each in verdict.evidence if each.slower is None]
    assert peers == [tuple(host for host in HOSTS if host != "n03")] * 2  # it was not alone


def test_the_partner_of_a_host_that_cannot_be_reached() -> None:
    """Three jobs of the pair that all failed: of the partner nothing is known, and why is said."""
    book = Book()
    for _ in range(3):
        for first in range(0, 16, 2):
            pair = HOSTS[first : first + 2]
            if "n03" in pair:
                book.failed(*pair, culprits=("n03",))
            else:
                book.ran(*pair)
    found = book.verdicts()
    assert [each.subject for each in found.accused] == [("n03",)]
    assert of(found, "n03").reason == TO_BLAME
    assert {each.peers for each in of(found, "n03").evidence} == {("n02",)}
    partner = of(found, "n02")
    assert partner.condition == "unknown"
    assert partner.reason == "its jobs failed because of n03, so they do not show how it is"


def test_words_for_a_host_that_no_job_names() -> None:
    """It fails alone and in groups, and nobody says why."""
    book = Book()
    book.ring(0)
    book.ring(1)
    book.failed("n03")
    book.failed("n03", "n07")
    book.failed("n03", "n09")
    verdict = of(book.verdicts(), "n03")
    assert verdict.condition == "failing" and "say themselves" not in verdict.reason


def test_one_error_of_hardware_is_enough() -> None:
    """However many good jobs the host had; of other failures one is not."""
    for good in (0, 1, 30):
        book = Book()
        book.alone()
        book.jobs = [each for each in book.jobs if each.hosts != ("n03",)]
        for _ in range(good):
            book.ran("n03")
        lone = Observation("x", ("n03",), None, State.FAILED, culprits=("n03",))
        assert not judge([*book.jobs, lone], FLEET).accused
        broken = Observation("x", ("n03",), None, State.FAILED, culprits=("n03",), hardware=True)
        (verdict,) = judge([*book.jobs, broken], FLEET).accused
        assert (verdict.subject, verdict.condition, verdict.reason) == (("n03",), "failing", TO_BLAME)


def test_hosts_that_are_not_judged_are_named_all_the_same() -> None:
    """Jobs with a host that is not in the topology tell nothing of the others."""
    known = Topology(HOSTS[:4])
    found = judge([Observation("x", ("n00", "else"), None, State.FAILED, culprits=("else",))], known)
    assert found.hosts[0].reason == "its jobs failed because of else, so they do not show how it is"
    assert found.hosts[1].reason == "it was in no job"
