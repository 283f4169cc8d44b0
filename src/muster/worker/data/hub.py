"""The datasets library's load_dataset, with its many errors made one."""

from __future__ import annotations

from typing import Any

from muster.core.errors import DataError
from muster.store.records import Splits

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


def held_part(parts: dict[str, Any]) -> str | None:
    """Return the name of the held-out part of a hub data set; None: it has none with rows."""
    return next((name for name in HELD_OUT if name in parts and len(parts[name])), None)


def unused_parts(parts: dict[str, Any], held: str | None) -> list[str]:
    """Return the names of a hub data set's parts that are neither trained on nor held out."""
    used = [parts["train"], *([parts[held]] if held else [])]
    return [name for name, part in parts.items() if not any(part is each for each in used)]


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
