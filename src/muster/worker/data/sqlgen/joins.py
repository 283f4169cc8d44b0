"""The query shapes over two tables that a foreign key joins."""

from __future__ import annotations

from .phrases import Draw
from .schemas import SqlTable
from .shapes import Pair


def _join(child: SqlTable, parent: SqlTable) -> str:
    return f"FROM {child.name} JOIN {parent.name} ON {child.name}.{parent.name}_id = {parent.name}.id"


def join_where(draw: Draw) -> Pair:
    """A child's column where the parent meets a condition."""
    child, parent = draw.link()
    condition = draw.condition(parent, f"{parent.name}.")
    column = draw.dice.pick(child.columns)
    question = draw.say(
        f"What is the {column.phrase} of {child.many} that belong to {parent.many} {condition.words}?",
        f"Show the {column.phrase} of {child.many} of {parent.many} {condition.words}.",
        f"For {parent.many} {condition.words}, list the {column.phrase} of their {child.many}.",
    )
    return question, f"SELECT {child.name}.{column.name} {_join(child, parent)} WHERE {condition.sql}"


def join_named(draw: Draw) -> Pair:
    """The children of the parent with a given name."""
    child, parent = draw.link()
    value, literal = draw.name_of(parent)
    column = draw.dice.pick(child.columns)
    question = draw.say(
        f"What is the {column.phrase} of {child.many} of the {parent.one} {value}?",
        f"List the {column.phrase} of every {child.one} that belongs to {parent.one} {value}.",
        f"Show the {column.phrase} of all {child.many} of {parent.one} {value}.",
    )
    where = f"WHERE {parent.name}.{parent.label.name} = {literal}"
    return question, f"SELECT {child.name}.{column.name} {_join(child, parent)} {where}"


def join_parent(draw: Draw) -> Pair:
    """A column of the parent of a given child."""
    child, parent = draw.link()
    column = draw.dice.pick(parent.columns)
    value, literal = draw.name_of(child)
    question = draw.say(
        f"What is the {column.phrase} of the {parent.one} of {child.one} {value}?",
        f"Which {column.phrase} has the {parent.one} that {child.one} {value} belongs to?",
        f"Show the {parent.one} {column.phrase} of the {child.one} {value}.",
    )
    where = f"WHERE {child.name}.{child.label.name} = {literal}"
    return question, f"SELECT {parent.name}.{column.name} {_join(child, parent)} {where}"


def join_aggregate(draw: Draw) -> Pair:
    """A number of the children, aggregated, where the parent meets a condition; or their count."""
    child, parent = draw.link()
    condition = draw.condition(parent, f"{parent.name}.")
    if draw.dice.chance(0.3):
        question = draw.say(
            f"How many {child.many} belong to {parent.many} {condition.words}?",
            f"Count the {child.many} of {parent.many} {condition.words}.",
        )
        return question, f"SELECT count(*) {_join(child, parent)} WHERE {condition.sql}"
    column = draw.dice.pick(child.numbers)
    function, word = draw.aggregate(column)
    question = draw.say(
        f"What is the {word} {column.phrase} of {child.many} of {parent.many} {condition.words}?",
        f"For {parent.many} {condition.words}, compute the {word} {column.phrase} of their {child.many}.",
        f"Tell me the {word} {column.phrase} of {child.many} that belong to {parent.many} {condition.words}.",
    )
    what = f"{function}({child.name}.{column.name})"
    return question, f"SELECT {what} {_join(child, parent)} WHERE {condition.sql}"


def join_group(draw: Draw) -> Pair:
    """Children per parent: counted, or one of their numbers aggregated; perhaps under a condition."""
    child, parent = draw.link()
    rest, where = "", ""
    if draw.dice.chance(0.6):
        condition = draw.compared(child, draw.dice.pick(child.numbers), f"{child.name}.")
        rest, where = f" {condition.words}", f" WHERE {condition.sql}"
    name = f"{parent.name}.{parent.label.name}"
    if draw.dice.chance(0.5):
        what = "count(*)"
        question = draw.say(
            f"How many {child.many}{rest} does each {parent.one} have?",
            f"Show the number of {child.many}{rest} per {parent.one}.",
            f"For each {parent.one}, count the {child.many}{rest}.",
        )
    else:
        column = draw.dice.pick(child.numbers)
        function, word = draw.aggregate(column)
        what = f"{function}({child.name}.{column.name})"
        question = draw.say(
            f"What is the {word} {column.phrase} of {child.many}{rest} for each {parent.one}?",
            f"Show the {word} {column.phrase} of {child.many}{rest} per {parent.one}.",
            f"For each {parent.one}, compute the {word} {column.phrase} of its {child.many}{rest}.",
        )
    return question, f"SELECT {name}, {what} {_join(child, parent)}{where} GROUP BY {name}"


def join_having(draw: Draw) -> Pair:
    """Parents with enough children."""
    child, parent = draw.link()
    least = draw.dice.between(2, 5)
    operator, words = draw.dice.pick(((">", "more than"), (">=", "at least")))
    question = draw.say(
        f"Which {parent.many} have {words} {least} {child.many}?",
        f"List every {parent.one} with {words} {least} {child.many}.",
        f"Show {parent.many} that own {words} {least} {child.many}.",
    )
    name = f"{parent.name}.{parent.label.name}"
    sql = f"SELECT {name} {_join(child, parent)} GROUP BY {name} HAVING count(*) {operator} {least}"
    return question, sql


def without(draw: Draw) -> Pair:
    """A column of the parents without children, perhaps of those that meet a condition: a nested query."""
    child, parent = draw.link()
    column = draw.dice.pick(parent.columns)
    rest, more = "", ""
    if draw.dice.chance(0.5):
        condition = draw.compared(parent, draw.dice.pick(parent.numbers))
        rest, more = f" {condition.words}", f" AND {condition.sql}"
    question = draw.say(
        f"Show the {column.phrase} of {parent.many}{rest} without any {child.many}.",
        f"What is the {column.phrase} of {parent.many}{rest} that have no {child.many}?",
        f"Give me the {column.phrase} of every {parent.one}{rest} lacking {child.many}.",
    )
    where = f"WHERE id NOT IN (SELECT {parent.name}_id FROM {child.name}){more}"
    return question, f"SELECT {column.name} FROM {parent.name} {where}"
