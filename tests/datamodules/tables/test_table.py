"""Reading tables: every way of writing CSV gives the same rows; what is no table is refused, in bounded memory."""

import csv
import gzip
import io
import pickle

import pytest

from datamodules import GraphCSVDataModule, MoleculeCSVDataModule
from datamodules.tables.table import Table, TableFormat, guess_separator

ROWS = [("id", "smiles", "y"), ("a b", "CC(=O)O", "1.5"), ("", "C,N", "-2"), ('7"', "c1ccccc1", ""), ("é", "O", "3e2")]


def read(path, **form):
    table = Table(path, TableFormat(**form))
    chunk = table.read(table.columns)
    return [tuple(table.columns), *zip(*chunk.columns.values(), strict=True)], chunk.bad


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("kind", ["plain", "bom", "gzip", "quoted", "no end"])
def test_every_way_of_writing_a_table_reads_the_same(tmp_path, separator, end, kind):
    text = io.StringIO()
    quoting = csv.QUOTE_ALL if kind == "quoted" else csv.QUOTE_MINIMAL
    csv.writer(text, delimiter=separator, lineterminator=end, quoting=quoting).writerows(ROWS)
    data = text.getvalue().encode("utf-8-sig" if kind == "bom" else "utf-8")
    data = gzip.compress(data) if kind == "gzip" else data.rstrip() if kind == "no end" else data
    path = tmp_path / "table.dat"
    path.write_bytes(data)
    assert read(path) == (ROWS, {})


def test_parquet_reads_as_csv_does(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pa.table({"id": [35, 7, None], "smiles": ["C", None, "N"], "y": [1.0, 2.5, float("nan")], "b": [True, False, None]})
    parquet.write_table(table, tmp_path / "t.csv")  # the content counts, not the name
    assert read(tmp_path / "t.csv")[0] == [
        ("id", "smiles", "y", "b"), ("35", "C", "1", "true"), ("7", "", "2.5", "false"), ("", "N", "", "")]  # fmt: skip


def test_rows_of_another_length_never_move_a_value(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("smiles,y\nC,1\nCC,2,\nCCC,3,4\nCCCC\n\nCCCCC,5\n")  # pandas would read C,1 / CC,2 as index and smiles
    rows, bad = read(path)
    assert rows[1:] == [("C", "1"), ("CC", "2"), ("", ""), ("", ""), ("CCCCC", "5")]
    assert bad == {2: "3 fields instead of 2", 3: "1 fields instead of 2"}


def test_a_row_of_another_length_keeps_the_field_that_it_is_called_by(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("smiles,id,y\nC,a,1\nCC,b\nCCC,c,3,5\nCCCC\n")
    chunk = Table(path).read(["smiles", "id", "y"], "id")
    assert chunk.columns == {"smiles": ["C", "", "", ""], "id": ["a", "b", "c", ""], "y": ["1", "", "", ""]}
    assert chunk.bad == {1: "2 fields instead of 3", 2: "4 fields instead of 3", 3: "1 fields instead of 3"}


def test_column_names_that_repeat_or_are_blank(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(",x,x\n1,2,3\n")
    assert Table(path).columns == ["column 0", "x", "x (2)"]
    with pytest.raises(ValueError, match="2 columns called 'x'"):
        Table(path, needed={"data.init_args.id_column": "x"})
    with pytest.raises(ValueError, match="`data.init_args.id_column` is 'id', but .* has no such column. Its columns are"):
        Table(path, needed={"data.init_args.id_column": "id"})


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_leading_comments_are_skipped_with_a_notice_and_may_name_the_columns(tmp_path, ending):
    def table(text, needed=("id", "a"), **form):
        (tmp_path / "t.csv").write_bytes(text.replace("\n", ending).encode())
        found = Table(tmp_path / "t.csv", TableFormat(**form), {f"data.init_args.{name}": name for name in needed})
        return found.read(found.columns).columns, [note.split("`: ", 1)[1] for note in found.notices if "skipped" in note]

    plain = {"id": ["x", "#y"], "a": ["1", "2"]}
    said = "2 leading line(s) with `#` or `%` are skipped"
    assert table('# made by us, "today\n%%more; of it\nid,a\nx,1\n#y,2\n') == (plain, [f"{said}."])
    assert table("% made by us\n\n#id,a\nx,1\n#y,2\n") == (plain, [f"{said}, and the last of them names the columns."])
    assert table("#id,a\nx,1\n", needed=("#id",)) == ({"#id": ["x"], "a": ["1"]}, [])  # the name that was asked for
    assert table("# 3 4\n%\nx\t1\n#y\t2\n", needed=(), header=False) == ({"0": ["x", "#y"], "1": ["1", "2"]}, [f"{said}."])
    assert table("#x,1\n#y,2\n", needed=(), header=False) == ({"0": ["#x", "#y"], "1": ["1", "2"]}, [])  # nothing else is there
    assert table("id,a\n#y,2\n")[1] == []
    with pytest.raises(ValueError, match="line 5: "):  # lines are those of the file
        table('# one\n# two\nid,a\nx,1\n"y"z,2\n')


def test_wanted_columns_decide_between_separators():
    head = "name;a,b\nx;1,5\ny;2,5\n"
    assert guess_separator(head) == ";" or guess_separator(head) == ","
    assert guess_separator(head, ["name"]) == ";" and guess_separator(head, ["name;a"]) == ","


class Bomb:
    def __reduce__(self):
        return (open, ("executed", "w"))


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_is_never_opened(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "nodes.csv"
    path.write_bytes(pickle.dumps(Bomb(), protocol))
    with pytest.raises(ValueError, match="is a Python pickle" if protocol else "has no such column"):
        Table(path, needed={"data.init_args.id_column": "id"})
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"PK\x03\x04rest", "ZIP archive"),
        (b"a,b\n1,\x002\n", "zero byte"),
        (b"a,b\n1,\xff\n", "is not utf-8 text.*cp1252"),
        ("a,b\n1,2\n".encode("utf-16"), "encoding: utf-16"),
        (b"\x1f\x8b\x08\x00broken", "damaged gzip"),
        (b'a,b\n1,"2\n3,4\n', r"line 3: .*closing `\"` missing"),
        (b"PAR1 broken", "parquet"),
        (b"a,b\n1," + b"x" * 200_000, "field limit"),
    ],
)
def test_what_is_no_table_is_refused_with_a_reason(tmp_path, content, message):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read(path)
    assert str(path) in str(error.value)


def test_other_encodings_by_name(tmp_path):
    path = tmp_path / "t.csv"
    for encoding in ("cp1252", "utf-16"):
        path.write_bytes("id,ü\n1,é\n".encode(encoding))
        assert read(path, encoding=encoding)[0] == [("id", "ü"), ("1", "é")]
    with pytest.raises(ValueError, match="`data.init_args.encoding` is 'utf-9', which is unknown"):
        read(path, encoding="utf-9")


def test_chunks_go_on_where_the_last_one_ended(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    path.write_text("id,y\n" + "".join(f"{i},{i * 2}\n" if i != 5 else "x\n" for i in range(10)))
    monkeypatch.setattr("datamodules.tables.table.CHUNK_ROWS", 3)
    chunks = list(Table(path).chunks(["y"]))
    assert [(c.first, c.size) for c in chunks] == [(0, 3), (3, 3), (6, 3), (9, 1)]
    assert chunks[1].columns == {"y": ["6", "8", ""]} and chunks[1].bad == {5: "1 fields instead of 2"}


def test_more_rows_than_memory_should_hold_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("datamodules.tables.table.MAX_ROWS", 3)
    (tmp_path / "t.csv").write_text("id\n1\n2\n3\n4\n")
    with pytest.raises(ValueError, match="has 5 rows, and more than 3 are refused"):
        Table(tmp_path / "t.csv")


def test_a_column_without_a_name_is_nobodys_feature_or_label(tmp_path):
    """What ``DataFrame.to_csv`` writes first, and what it is called after a second time."""
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n")
    for first in ("", "Unnamed: 0"):
        (tmp_path / "nodes.csv").write_text(f"{first},id,f,label\n0,1,5,a\n1,2,6,b\n")
        graph = GraphCSVDataModule(root=str(tmp_path), num_clients=1)
        graph.setup()
        assert graph.feature_names == ["f"] and any("has no name" in note for note in graph.notices)
        (tmp_path / "m.csv").write_text(f"{first},smiles,y (2)\n0,C,5\n1,CC,6\n")
        molecules = MoleculeCSVDataModule(files=str(tmp_path / "m.csv"), num_clients=1, cache_dir=None, fractions=(1.0, 0, 0))
        molecules.setup()
        assert molecules.task_names == ["y (2)"] and molecules.units == []
