"""The datasets library's load_dataset, with its many errors made one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeVar

from muster.core.errors import DataError
from muster.store.lines import Skip, each_made
from muster.store.records import LoadedSamples, RowForm, Splits

T = TypeVar("T")

HELD_OUT = ("validation", "test")  # parts of a data set: the first that is there
CONVERTED = "refs/convert/parquet"  # the hub's own copy of a data set as Parquet files


def load(builder: str, where: str, hint: str | None = None, **options: Any) -> Any:
    """Load one split, or all of them by name. `where`, `hint`: of the error. Raises DataError."""
    import datasets

    datasets.disable_progress_bars()
    try:
        try:
            return datasets.load_dataset(builder, **options)
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise
            return datasets.load_dataset(builder, revision=CONVERTED, **options)  # such as WikiSQL
    except Exception as error:  # the library's errors are many; each is about this data or the network
        cause = error.__cause__ or error
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        raise DataError(f"cannot be loaded: {reason}", where=where, hint=hint) from None


def hub_parts(name: str, subset: str | None = None, splits: Splits | None = None) -> dict[str, Any]:
    """Load a hub data set's parts by their names; there is a train part, and the held-out one that `splits`
    wants is called validation. Raises DataError."""
    where = f"data.name={name}"
    hint = "without network access, download it and give data.path=FOLDER"
    loaded = dict(load(name, where, hint, name=subset))
    splits = splits or Splits()
    splits.check([*loaded], where)
    train = splits.train_of([*loaded])
    if splits.train is None and "train" in loaded:
        train = ["train"]
    if len(train) != 1:
        hint = f"data.train_split=NAME; its parts: {', '.join(loaded)}"
        raise DataError("has several train parts" if train else "has no train part", where=where, hint=hint)
    held = splits.held_of([*loaded], train) if splits.held_out or train != ["train"] else []
    return {**loaded, "train": loaded[train[0]], **({"validation": loaded[held[0]]} if held else {})}


def hub_samples(
    form: RowForm[T],
    name: str,
    subset: str | None,
    splits: Splits,
    *,
    limit: int | None = None,
    skip: Skip | None = None,
) -> LoadedSamples[T]:
    """Read the samples of a hub data set; at most `limit` to train on. Raises DataError."""
    parts = hub_parts(name, subset, splits)
    held = next((part for part in HELD_OUT if part in parts and len(parts[part])), None)

    def rows(part: str) -> Iterator[tuple[str, dict[str, Any]]]:
        names = parts[part].column_names
        columns = form.columns(names)  # the others are not decoded
        read = parts[part].select_columns(columns) if columns else parts[part]
        for number, row in enumerate(read):
            yield f"{name}, {part}[{number}]", {column: row.get(column) for column in names}

    def samples(part: str) -> Iterator[T]:
        return each_made(rows(part), lambda row, place: form.make(row, place, None), skip)

    used = [parts[part] for part in ("train", held) if part]
    unused = [part for part, read in parts.items() if not any(read is each for each in used)]
    notes = form.unread(name, rows("train")) + ([f"{name}: not used: {', '.join(unused)}"] if unused else [])
    return LoadedSamples(
        list(islice(samples("train"), limit)),
        list(samples(held)) if held else [],
        about=name + (f", held out its part {held}" if held else ""),
        notes=tuple(notes),
    )
