"""What holds for any input: parsers raise their own error or nothing, and arithmetic is exact or says what
would be."""

from __future__ import annotations

import json
import re
import string
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from muster.core.batch import Batch, resolve_batch
from muster.core.errors import InventoryError, RecipeError
from muster.core.inventory import (
    Host,
    Inventory,
    format_hostfile,
    parse_hostfile,
    parse_hosts,
    read_inventory,
)
from muster.core.printable import HIDDEN
from muster.core.recipe import Recipe
from muster.core.recipes import dump_yaml, field_paths, load_recipe, merge, parse_override, validate
from muster.fleet.connection import LineSplitter
from muster.workloads.text2sql.spec import TextToSqlRecipe

# ---- host lists --------------------------------------------------------------------------------------------

SPICE = st.text(st.sampled_from("ab1:[]-,.@%# \n\t=slotx_08"), max_size=25)
ANY_TEXT = st.one_of(st.text(max_size=40), SPICE)

LETTER = string.ascii_letters + string.digits + "_"
NAMES = st.one_of(
    st.from_regex(rf"[{LETTER}]([{LETTER}.\-]{{0,10}}[{LETTER}])?", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
)
HOSTS = st.lists(
    st.builds(Host, NAMES, st.none() | st.integers(1, 1024)),
    min_size=1,
    max_size=6,
    unique_by=lambda h: h.label.lower(),  # case means nothing in the names of hosts
)


def is_sound(inventory: Inventory) -> bool:
    """At least one host, or Slurm is asked for some; none twice, and every number within its bounds."""
    slots = [host.slots for host in inventory.hosts]
    return (
        (len(inventory.hosts) > 0) != (inventory.ask is not None)
        and len(set(inventory.names)) == len(inventory.names)
        and all(count is None or 1 <= count <= 1024 for count in slots)
        and all(name and not name.startswith("-") and not re.search(r"\s", name) for name in inventory.names)
    )


@given(ANY_TEXT)
@example("n[0-99999][0-99999]")
@example("a\n:3")
@example("[" * 50)
@example("slurm:")
def test_any_host_list_is_read_or_refused(text: str) -> None:
    try:
        inventory = parse_hosts(text)
    except InventoryError as error:
        assert error.what
        assert error.where == text or HIDDEN in error.where  # user:password@host
    else:
        assert is_sound(inventory)


@given(ANY_TEXT)
def test_any_host_file_is_read_or_refused(text: str) -> None:
    try:
        inventory = parse_hostfile(text, source="hosts")
    except InventoryError as error:
        assert (error.where or "").startswith("hosts")
    else:
        assert is_sound(inventory)


@given(ANY_TEXT | st.text(st.sampled_from("./ab\0~"), max_size=10))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_given_as_hosts_is_read_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        inventory = read_inventory(text)
    except InventoryError as error:
        assert error.what
    else:
        assert is_sound(inventory)


@given(HOSTS)
def test_a_host_file_is_read_back(hosts: list[Host]) -> None:
    assert list(parse_hostfile(format_hostfile(hosts), source="x").hosts) == hosts


@given(HOSTS.filter(lambda hosts: len(hosts) > 1 or hosts[0].name != "local"))
def test_a_host_list_is_read_back(hosts: list[Host]) -> None:
    text = ",".join(host.name if host.slots is None else f"{host.name}:{host.slots}" for host in hosts)
    assert list(parse_hosts(text).hosts) == hosts


@given(st.integers(0, 200), st.integers(0, 30), st.integers(1, 4))
def test_a_range_of_hosts_is_every_host_of_it(low: int, more: int, width: int) -> None:
    names = parse_hosts(f"n[{low:0{width}d}-{low + more}]").names
    assert names == tuple(f"n{number:0{width}d}" for number in range(low, low + more + 1))


# ---- recipes -----------------------------------------------------------------------------------------------

PATHS = field_paths(TextToSqlRecipe)
VALUES = st.one_of(
    st.text(max_size=20),
    st.text(st.sampled_from("[]{}:,&*!?|>'\"%@`-#.~0123456789eExob_ atruefls"), max_size=15),
    st.sampled_from(
        ["!!int x", "!!bool x", "!!float x", "!!timestamp x", "!!binary x", "0x", "08", "0b_", "=", "<<"]
    ),
    st.integers().map(str),
    st.floats().map(str),
)


@given(st.text(max_size=30) | st.builds("{}={}".format, st.sampled_from(PATHS) | st.text(max_size=8), VALUES))
@settings(max_examples=600)
def test_any_override_is_read_or_refused(text: str) -> None:
    try:
        recipe = validate(merge({}, parse_override(text), Recipe), where="x")
    except RecipeError as error:
        assert error.what
        assert "\n" not in error.what.replace(text, "")
    else:
        again = yaml.safe_load(dump_yaml(recipe.as_dict()))
        assert validate(again, where="x") == recipe


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=3)


def layers(depth: int) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings that agree on which names are sections (upper case) and which are values."""
    values = st.dictionaries(st.sampled_from("abc"), LEAVES, max_size=3)
    if not depth:
        return values
    sections = st.dictionaries(st.sampled_from("AB"), layers(depth - 1), max_size=2)
    return st.builds(lambda a, b: {**a, **b}, values, sections)


@given(layers(2), layers(2), layers(2))
def test_merging_layers_is_associative(a: dict[str, Any], b: dict[str, Any], c: dict[str, Any]) -> None:
    assert merge(merge(a, b, None), c, None) == merge(a, merge(b, c, None), None)
    assert merge(a, {}, None) == merge({}, a, None) == merge(a, a, None) == a


SOURCES = {"name": st.text(max_size=3), "path": st.text(max_size=3), "generated": st.just({})}
ONE_SOURCE = st.sampled_from(sorted(SOURCES)).flatmap(
    lambda key: st.fixed_dictionaries({key: SOURCES[key]}, optional={"limit": st.integers(1, 5)})
)


@given(st.lists(ONE_SOURCE, min_size=1, max_size=5))
def test_the_last_exclusive_key_wins(chain: list[dict[str, Any]]) -> None:
    merged: dict[str, Any] = {}
    for layer in chain:
        merged = merge(merged, {"data": layer}, Recipe)
    data = validate(merged, where="x").data
    last = next(key for key in SOURCES if key in chain[-1])
    assert [key for key in SOURCES if getattr(data, key) is not None] == [last]
    limits = [layer["limit"] for layer in chain if "limit" in layer]
    assert data.limit == (limits[-1] if limits else None)


FULL = load_recipe(
    "demo", ["lora.rank=4", "lora.targets=[q, v]", "env.A='1e5'", "engine.options={gradient_clipping: 1}"]
)


@pytest.mark.parametrize("path", PATHS)
def test_overriding_a_field_with_its_own_value_changes_nothing(path: str) -> None:
    before = FULL.as_dict()
    value: Any = before
    for part in path.split("."):
        value = value[part]
    override = parse_override(f"{path}={json.dumps(value)}")  # JSON is YAML
    assert validate(merge(before, override, Recipe), where="x") == FULL


# ---- batch arithmetic --------------------------------------------------------------------------------------

NUMBER = st.none() | st.integers(1, 64) | st.integers(1, 5000)


def exact(batch: Batch, world: int) -> bool:
    return (
        batch.micro * batch.accumulation * world == batch.global_
        and min(batch.micro, batch.accumulation) >= 1
    )


@given(NUMBER, NUMBER, NUMBER, st.integers(1, 65))
@settings(max_examples=600)
def test_a_batch_is_exact_or_the_hint_says_what_would_be(
    micro: int | None, accumulation: int | None, global_: int | None, world: int
) -> None:
    wanted = {"micro": micro, "accumulation": accumulation, "global": global_}
    try:
        batch = resolve_batch(micro, accumulation, global_, world_size=world)
    except RecipeError as error:
        offers = re.findall(r"batch\.(micro|accumulation|global)=(\d+)", error.hint or "")
        assert offers
        for name, number in offers:
            changed = {**wanted, name: int(number)}
            assert changed != wanted
            got = resolve_batch(
                changed["micro"], changed["accumulation"], changed["global"], world_size=world
            )
            assert exact(got, world)
    else:
        assert exact(batch, world)
        made = {"micro": batch.micro, "accumulation": batch.accumulation, "global": batch.global_}
        assert all(value is None or made[name] == value for name, value in wanted.items())


@given(NUMBER, NUMBER, NUMBER, st.integers(1, 65))
def test_a_batch_that_can_be_made_is_never_refused(
    micro: int | None, accumulation: int | None, global_: int | None, world: int
) -> None:
    unit = (micro or 1) * (accumulation or 1) * world
    possible = global_ is None or (
        global_ % unit == 0 and (micro is None or accumulation is None or global_ == unit)
    )
    if possible:
        assert exact(resolve_batch(micro, accumulation, global_, world_size=world), world)
    else:
        with pytest.raises(RecipeError):
            resolve_batch(micro, accumulation, global_, world_size=world)


# ---- what hosts say ----------------------------------------------------------------------------------------


@given(
    st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b" ")), max_size=8),
    st.lists(st.integers(0, 104), max_size=6),
)
def test_lines_are_whole_however_their_bytes_come(lines: list[bytes], cuts: list[int]) -> None:
    """Each line has all the room that one may have, whatever came before it."""
    data, reader = b"".join(line + b"\n" for line in lines), LineSplitter(8)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    found = [line for low, high in pairwise(edges) for line in reader.feed(data[low:high])]
    assert found == [line[:8] for line in lines]
    assert reader.rest() == b"" and reader.overlong == any(len(line) > 8 for line in lines)
