"""The error tree: one line for people, four facts for machines, and the exit codes that the CLI promises."""

from __future__ import annotations

import pytest

from muster.core import errors


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.MusterError, 1),
        (errors.UsageError, 2),
        (errors.InventoryError, 2),
        (errors.RecipeError, 2),
        (errors.DataError, 2),
        (errors.RunFolderError, 2),
        (errors.JobError, 1),
        (errors.HostError, 1),
        (errors.WorkerError, 1),
    ],
)
def test_exit_codes(kind: type[errors.MusterError], code: int) -> None:
    assert kind("x").exit_code == code
    assert issubclass(kind, errors.MusterError)


def test_no_error_is_both_bad_input_and_a_breakdown() -> None:
    assert not issubclass(errors.JobError, errors.UsageError)
    assert not issubclass(errors.UsageError, errors.JobError)


@pytest.mark.parametrize(
    ("where", "host", "line"),
    [
        (None, None, "broke"),
        ("file:3", None, "file:3: broke"),
        (None, "node1", "node1: broke"),
        ("file:3", "node1", "node1: file:3: broke"),
    ],
)
def test_the_line_a_user_reads(where: str | None, host: str | None, line: str) -> None:
    error = errors.MusterError("broke", where=where, host=host, hint="mend it", failure="disk_full")
    told = {"what": "broke", "where": where, "host": host, "hint": "mend it", "id": "disk_full"}
    assert (str(error), error.as_dict()) == (line, told)
