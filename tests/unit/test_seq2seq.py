"""Pairs of any names, and the schema of tables behind the question: where it is from, and what is cut."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.batch import mean_padded
from muster.core.errors import DataError, RecipeError, UsageError
from muster.core.recipe import recipe_from
from muster.core.recipes import dump_yaml, load_recipe
from muster.inputs.model import whole_config
from muster.runs.ask import read_schema
from muster.store.atomic import write_text
from muster.store.databases import find_database, tables_of
from muster.store.runfolder import RunFolder
from muster.workloads.seq2seq.spec import PairData, PairRow, load_rows
from muster.workloads.text2sql.spec import TextToSqlData
from tests.images import write_folder

GEO = "river: id INTEGER, name TEXT | Lake: name varchar(20), depth"
SEA = "sea: name TEXT"
PAIR = '{"question": "a", "answer": "b"'


def database(file: Path, *statements: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(file)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    return file


@pytest.fixture
def spider(tmp_path: Path) -> Path:
    """A folder as Spider is: lists of questions, and a folder for each database."""
    geo = "CREATE TABLE river (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT)"
    database(tmp_path / "database/geo/geo.sqlite", geo, "CREATE TABLE Lake (name varchar(20), depth)")
    database(tmp_path / "database/sea/sea.sqlite", "CREATE TABLE sea (name TEXT)")
    rows = [
        {"db_id": ("geo", "sea")[i % 2], "query": f"SELECT {i}", "question": f"which {i}?", "sql": {"a": i}}
        for i in range(8)
    ]
    (tmp_path / "train_spider.json").write_text(json.dumps(rows, indent=1))
    return tmp_path


def read(path: Path, **data: Any) -> list[PairRow]:
    return list(PairData.model_validate(data).form.read([path]))


def failure(path: Path, **data: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        read(path, **data)
    return caught.value


@pytest.mark.parametrize(
    ("name", "text", "fields"),
    [
        ("a.jsonl", '{"id": 1, "input": "q", "target": "a"}\r\n', ("input", "target")),
        ("a.jsonl", '{"source": "wiki", "question": "q", "answer": "a"}', ("question", "answer")),
        ("a.jsonl", '{"instruction": "q", "input": " ", "output": "a"}', ("instruction", "output")),
        ("a.csv", "\ufeffId;Question;Answer\r\n1;q;a\r\n", ("Question", "Answer")),
        ("a.tsv", "text\tsummary\nq\ta\n", ("text", "summary")),
        ("a.json", '\n[{"question": "q",\n"answer": "a"}]\n', ("question", "answer")),
    ],
)
def test_the_usual_names_are_found(name: str, text: str, fields: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text.encode())
    assert read(tmp_path / name) == [PairRow("q", "a", fields)]


def test_what_the_recipe_names_is_taken(tmp_path: Path) -> None:
    """Quotes, line ends within a field, and any characters stay as they are."""
    path = tmp_path / "a.csv"
    path.write_bytes('question,answer,deutsch\r\n"a ""b""\r\nc, ü",no,"„ja“"\r\n'.encode())
    assert read(path, target="deutsch") == [PairRow('a "b"\r\nc, ü', "„ja“", ("question", "deutsch"))]
    (tmp_path / "b.jsonl").write_text('{"translation": {"en": "yes", "fr": "oui"}}')
    found = read(tmp_path / "b.jsonl", input="translation.en", target="translation.fr")
    assert [(row.input, row.target) for row in found] == [("yes", "oui")]


@pytest.mark.parametrize(
    ("text", "data", "what", "hint"),
    [
        ('{"english": "a", "french": "b"}', {}, "no known pair", "data.input=english data.target=french"),
        ('{"a": "a"}', {"input": "a"}, "no known pair", "data.input=a data.target=NAME names"),
        ('{"question": "a"}', {}, "no known pair", "the fields there are: question"),
        ('{"question": "a", "answer": 4}', {}, "'answer' is not text but a number", "data.target names"),
        ('{"question": "a", "answer": " "}', {}, "'answer' is empty", "data.bad=skip"),
        (
            '{"instruction": "a", "input": "b", "output": "c"}', {}, "fields instruction and input",
            "data.input=instruction, and data.schema=input",
        ),
        (PAIR + "}", {"schema": "tables"}, "'tables' is missing", "data.schema"),
        (PAIR + "}", {"schema": "database"}, "names no database", "question, answer"),
        (PAIR + ', "db_id": "x"}', {"schema": "database"}, "no such file", "database/x/x.sqlite"),
        (PAIR + ', "database": "a.jsonl"}', {"schema": "database"}, "not a SQLite file", "a.jsonl"),
        (PAIR + ', "db_id": "no"}', {"schema": "database"}, "has no tables", ""),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_by_file_and_line(
    text: str, data: dict[str, str], what: str, hint: str, tmp_path: Path
) -> None:
    database(tmp_path / "no.db", "CREATE TABLE a (b)", "DROP TABLE a")
    path = tmp_path / "a.jsonl"
    path.write_text(f"\n{text}\n")
    error = failure(path, **data)
    assert what in error.what and hint in (error.hint or "")
    assert error.where == f"{path}:2"


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ('[{"question": "q"},\n{"question": }]', ":2", "is not JSON"),
        ('[{"question": "q", "answer": "a"}, 3]', "[1]", "is not a JSON object"),
        ("[]", "", "has no samples"),
    ],
)
def test_a_bad_list(text: str, where: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    error = failure(tmp_path / "a.json")
    assert what in error.what and error.where == f"{tmp_path / 'a.json'}{where}"


def test_a_schema_stands_behind_the_question(spider: Path) -> None:
    """From the row's database, or from a field: a text, or a list of names."""
    first, second, *_ = read(spider / "train_spider.json", schema="database")
    assert (first.input, first.schema, first.target) == (f"which 0? | {GEO}", GEO, "SELECT 0")
    assert (second.input, second.database) == (f"which 1? | {SEA}", spider / "database/sea/sea.sqlite")
    rows = [
        {"question": "q", "sql": "s", "table": table} for table in ({"header": ["a", "b"]}, {"header": ""})
    ]
    (spider / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = read(spider / "own.jsonl", schema="table.header")
    assert [row.input for row in found] == ["q | a, b", "q"]
    assert "is not text" in failure(spider / "own.jsonl", schema="table").what


def test_a_database_is_found_in_the_usual_places(tmp_path: Path) -> None:
    for place in ("geo.db", "databases/sea.sqlite", "train_databases/lake/lake.sqlite", "own/any.thing"):
        write_folder(tmp_path, {place: b""})
        name = place if place.startswith("own") else Path(place).stem
        assert find_database(name, tmp_path) == tmp_path / place
    assert find_database("none", tmp_path) is None


def test_names_of_tables_that_need_quotes(tmp_path: Path) -> None:
    table = 'CREATE TABLE "two words" ("a ""b""" INTEGER)'
    file = database(tmp_path / "a.db", table, "CREATE VIEW v AS SELECT 1 c")
    assert tables_of(file) == 'two words: a "b" INTEGER | v: c'


def test_whole_schemas_are_held_out(spider: Path) -> None:
    """A table that is held out was seen in no sample."""
    given = {"path": str(spider), "schema": "database", "hold_out": "schemas"}
    recipe = recipe_from({"workload": "seq2seq", "data": given})
    recipe.check_data(spider, {})
    assert recipe.survey(None).samples == 4
    assert recipe.describe_data(spider).endswith("from field question with schema database to field query")
    rows = json.loads((spider / "train_spider.json").read_text())
    (spider / "train_spider.json").write_text(json.dumps(rows[::2]))
    with pytest.raises(DataError, match="1 different schema is too few"):
        recipe.check_data(spider, {})
    for wrong in (["data.hold_out=schemas"], ["data.schema=database", "data.name=spider"]):
        with pytest.raises(RecipeError, match=r"hold_out=schemas needs|next to data\.path"):
            load_recipe("seq2seq", wrong)


def test_text2sql_has_names_of_its_own() -> None:
    """In recipes and their frozen copies; the general ones are the same."""
    recipe = load_recipe("demo", ["data.question=q", "data.sql=a.b"])
    assert isinstance(recipe.data, TextToSqlData) and recipe.data.prefix == "translate to SQL: "
    assert (recipe.data.input, recipe.data.target) == ("q", "a.b")
    data = recipe.as_dict()["data"]
    assert (data["question"], data["sql"]) == ("q", "a.b") and not {"input", "target", "schema_"} & set(data)
    assert load_recipe("demo", ["data.input=q", "data.target=a.b"]) == recipe


# --- asking ----------------------------------------------------------------------------------------------


def trained(folder: Path, *overrides: str) -> RunFolder:
    run = RunFolder(folder)
    run.create()
    write_text(run.recipe, dump_yaml(load_recipe("seq2seq", overrides).as_dict()))
    run.model.mkdir()
    return run


def test_the_schema_that_a_question_comes_with(spider: Path) -> None:
    run = trained(spider / "run", "data.schema=database")
    (spider / "a.txt").write_text(f"\n{SEA}\n")
    assert read_schema(run, None) is None
    assert read_schema(run, str(spider / "database/geo/geo.sqlite")) == GEO
    assert read_schema(run, str(spider / "a.txt")) == read_schema(run, SEA) == SEA
    (spider / "a.txt").write_text("\n")
    wrong = {"geo.sqlite": "no such file", "my geo.sqlite": "no such file", str(spider / "a.txt"): "is empty"}
    for given, what in wrong.items():
        with pytest.raises(UsageError, match=what):
            read_schema(run, given)
    with pytest.raises(UsageError, match="means nothing to --evaluate"):
        read_schema(run, SEA, evaluate=True)
    with pytest.raises(UsageError, match="trained without schemas"):
        read_schema(trained(spider / "plain"), SEA)


def test_a_question_without_the_schema_that_it_needs() -> None:
    with_schema, without = load_recipe("seq2seq", ["data.schema=database"]), load_recipe("seq2seq")
    assert with_schema.lacks_schema("which?") and not without.lacks_schema("which?")
    asked = with_schema.with_schema("which?", SEA)
    assert asked == f"which? | {SEA}" and not with_schema.lacks_schema(asked)


# --- ranks -----------------------------------------------------------------------------------------------


class Words:
    """A tokenizer of words. `ends`: it puts an end behind them."""

    eos_token_id = 1

    def __init__(self, ends: bool = True) -> None:
        self.ends = ends

    def __call__(self, texts: Any) -> dict[str, Any]:
        one, end = isinstance(texts, str), [1] if self.ends else []
        made = [[*map(hash, text.split()), *end] for text in ([texts] if one else texts)]
        return {"input_ids": made[0] if one else made}


def test_of_a_long_input_the_schema_is_cut_first(spider: Path) -> None:
    """And counted, as are questions that lose a part too."""
    pytest.importorskip("torch")
    pytest.importorskip("datasets")
    from muster.workloads.seq2seq.train import Encoded, load_pairs, schemas_cut

    data = PairData.model_validate({"path": str(spider), "schema": "database", "hold_out": "schemas"})
    pairs = load_pairs(data, spider / "cache", may_write=False, seed=0)
    assert not {pair.schema for pair in pairs.train} & {pair.schema for pair in pairs.held_out}
    assert {pair.database for pair in pairs.train} == {None}  # targets are texts, and nothing is executed
    assert pairs.about.endswith("inputs: field question, schema: database; answers: field query")
    assert any("4 of 8 samples are held out" in note for note in pairs.notes)
    for length, schemas, questions in ((30, 0, 0), (8, 4, 0), (3, 8, 8)):
        short = data.model_copy(update={"max_source": length})
        both = (Encoded(pairs.train, Words(), short), Encoded(pairs.held_out, Words(), short))
        assert sum(part.schemas_cut for part in both) == sum(part.cut for part in both) == schemas
        assert sum(part.questions_cut for part in both) == questions
        told = "".join(schemas_cut(both[0], both[1], length))
        assert (f"{schemas} samples" in told) == bool(schemas) and ("question too" in told) == bool(questions)
        source, _ = both[0].rows[0]
        assert source[:2] == Words()(pairs.train[0].question)["input_ids"][:2]
        assert len(source) <= length and source[-1] == 1


@pytest.mark.parametrize("ends", [True, False])
def test_every_target_ends_and_texts_are_cut_at_their_end(ends: bool) -> None:
    """Also where the tokenizer adds no end: then an input has none, and loses its last words."""
    pytest.importorskip("torch")
    pytest.importorskip("datasets")
    from muster.workloads.seq2seq.train import Encoded, TextPair

    data = PairData(max_source=4, max_target=4)
    pairs = [TextPair("a b c d e f", "g h i j k"), TextPair("a", "g h i")]
    made = Encoded(pairs, Words(ends), data)
    a, b, c, d, g, h, i = map(hash, "abcdghi")
    target = [g, h, i, 1]
    assert made.rows == [([a, b, c, 1 if ends else d], target), ([a, *([1] if ends else [])], target)]
    assert (made.cut, made.ended) == (1, 0 if ends else 2)


@pytest.mark.parametrize("key", ["max_source", "max_target"])
def test_texts_longer_than_the_model_has_positions_are_refused(key: str) -> None:
    """BART's and Pegasus' are learned or drawn once; T5 has none."""
    recipe = load_recipe("seq2seq", [f"data.{key}=1025"])
    with pytest.raises(RecipeError, match="1,024 positions") as refused:
        recipe.check_data(None, {"model_type": "bart", "max_position_embeddings": 1024})
    assert refused.value.where == f"data.{key}"
    assert recipe.check_data(None, {"model_type": "bart", "max_position_embeddings": 1025}) is None
    assert recipe.check_data(None, {"model_type": "t5"}) is None
    assert recipe.check_data(None, {"model_type": "longt5", "n_positions": 512}) is None  # it reads none


def test_rows_of_unlike_fields_are_all_named(tmp_path: Path) -> None:
    rows = [{"question": f"q{n}", "answer": "a"} for n in range(3)] + [{"instruction": "i", "output": "o"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = PairData.model_validate({"path": str(tmp_path), "validation_fraction": 0})
    assert [each for each in load_rows(data, 0, tmp_path).notes if "different fields" in each] == [
        "rows have different fields, and all are read: question and answer (3), instruction and output (1)"
    ]


def test_fields_of_held_out_rows_are_named_too(tmp_path: Path) -> None:
    for name, row in (("train", PAIR + "}"), ("validation", '{"instruction": "c", "output": "d"}')):
        (tmp_path / f"{name}.jsonl").write_text(row)
    notes = load_rows(PairData.model_validate({"path": str(tmp_path)}), 0, tmp_path).notes
    assert any("question and answer (1), instruction and output (1)" in each for each in notes)


@pytest.mark.parametrize("init", ["pretrained", "random"])
def test_a_model_that_is_drawn_has_no_output_of_its_own(init: str) -> None:
    """Whatever its configuration says: Transformers ties it."""
    config = whole_config(load_recipe("seq2seq", ["model.name=google/flan-t5-small", f"model.init={init}"]))
    assert config is not None and config["tie_word_embeddings"] is (init == "random")


@pytest.mark.parametrize(("source", "target", "tokens"), [(9, 9, 3 + 4), (3, 9, 2.5 + 4), (9, 2, 3 + 2)])
def test_a_mean_length_is_of_what_is_cut_and_ended(
    source: int, target: int, tokens: float, tmp_path: Path
) -> None:
    """By a tokenizer that ends no text: an input of 2 or 4 tokens, and a target of 3 with the end it gets."""
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    rows = [{"input": "a " * n, "target": "b b b"} for n in (2, 4) * 25]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    limits = [f"data.max_source={source}", f"data.max_target={target}"]
    given = [f"data.path={tmp_path / 'rows.jsonl'}", "data.validation_fraction=0"]
    recipe = load_recipe("seq2seq", [*given, *limits, f"model.tokenizer={tmp_path}", "data.generated=null"])
    assert mean_padded(recipe.survey({}).lengths, 50) == tokens


def test_the_tokenizer_reads_each_schema_once(monkeypatch: pytest.MonkeyPatch, spider: Path) -> None:
    """Else the words of a large schema would be most of what it learns."""
    pytest.importorskip("torch")
    from muster.workloads.seq2seq import train

    seen: list[str] = []
    monkeypatch.setattr(train, "train_tokenizer", lambda texts, size: seen.extend(texts))
    recipe = load_recipe("seq2seq", ["data.schema=database", f"data.path={spider}", 'data.prefix="to: "'])
    pairs = train.load_pairs(train.data_of(recipe), spider, may_write=False, seed=0)
    train.make_tokenizer(SimpleNamespace(recipe=recipe), pairs.train)  # type: ignore[arg-type]
    text = "\n".join(seen)
    assert text.count(GEO) == text.count(SEA) == 1
    assert text.count("to: which") == text.count("SELECT") == len(pairs.train) == 7
