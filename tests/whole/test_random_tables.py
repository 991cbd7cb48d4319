"""Random tables of all kinds: each row's values arrive with that row or the row is listed with a reason; whatever else is
wrong ends with a message, never with another error. Row i holds a chain of i + 1 carbons (or feature i), so that a value
which moved by one row would meet the wrong molecule (or node)."""

import csv
import gzip
import io
import logging

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datamodules import GraphCSVDataModule, MoleculeCSVDataModule

QUICK = settings(max_examples=60, deadline=None, derandomize=True,
                 suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])  # fmt: skip
PRINTABLE = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="\x85\x7f"), max_size=8)
BLANK = st.sampled_from(["", "NaN", "n/a", " "])


@pytest.fixture(autouse=True, scope="module")
def _no_notices():
    logger = logging.getLogger("datamodules")
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(logging.NOTSET)


@st.composite
def dialects(draw):
    return {"separator": draw(st.sampled_from([",", ";", "\t", "|"])), "end": draw(st.sampled_from(["\n", "\r\n", "\r"])),
            "bom": draw(st.booleans()), "packed": draw(st.booleans()), "gaps": draw(st.booleans()),
            "quote": draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])),
            "decimal": draw(st.sampled_from([".", ","])), "say": draw(st.booleans())}  # fmt: skip


def write(path, rows, dialect):
    text = io.StringIO()
    writer = csv.writer(text, delimiter=dialect["separator"], lineterminator=dialect["end"], quoting=dialect["quote"])
    for row in rows:
        writer.writerow(row)
        if dialect["gaps"]:
            text.write(dialect["end"])  # empty lines between rows
    data = text.getvalue().encode("utf-8-sig" if dialect["bom"] else "utf-8")
    path.write_bytes(gzip.compress(data) if dialect["packed"] else data)


def number(value, dialect):
    return str(value).replace(".", dialect["decimal"])


@st.composite
def molecule_rows(draw):
    """(smiles, id, client, label or None, wrong) by row."""
    rows = []
    for place in range(draw(st.integers(1, 12))):
        wrong = draw(st.sampled_from([None] * 6 + ["smiles", "label", "client", "short", "long"]))
        rows.append({"id": draw(PRINTABLE), "client": draw(st.sampled_from(["A", "B 2", "ü"])), "wrong": wrong,
                     "y": draw(st.one_of(st.none(), st.just(place + 0.25)))})  # fmt: skip
    return rows


@QUICK
@given(rows=molecule_rows(), dialect=dialects(), by_client=st.booleans(), extra=st.booleans())
def test_labels_of_molecules_stay_in_their_row(tmp_path_factory, rows, dialect, by_client, extra):
    path = tmp_path_factory.mktemp("m") / "table.txt"
    header = ["name", "smiles", "y", "site"] + ["x"] * extra
    lines = []
    for place, row in enumerate(rows):
        label = "> 3 mg" if row["wrong"] == "label" else "" if row["y"] is None else number(row["y"], dialect)
        line = [row["id"], "C1CC" if row["wrong"] == "smiles" else "C" * (place + 1), label,
                "" if row["wrong"] == "client" else row["client"], *(["note, here"] * extra)]  # fmt: skip
        line = line[:-1] if row["wrong"] == "short" else [*line, "more"] if row["wrong"] == "long" else line
        lines.append(line)
    write(path, [header, *lines], dialect)
    options = {"client_column": "site"} if by_client else {"num_clients": 1}
    if dialect["say"]:
        options |= {"separator": dialect["separator"], "decimal": dialect["decimal"]}
    data = MoleculeCSVDataModule(files=str(path), targets=["y"], id_column="name", task="regression", cache_dir=None,
                                 featurise_workers=0, fractions=(1.0, 0.0, 0.0), **options)  # fmt: skip
    bad = [place for place, row in enumerate(rows) if row["wrong"] not in (None, *(() if by_client else ("client",)))]
    try:
        data.setup()
    except ValueError as error:
        labelled = any(row["y"] is not None for place, row in enumerate(rows) if place not in bad)
        assert ("none of" in str(error) and len(bad) == len(rows)) or ("has a label" in str(error) and not labelled)
        return
    good = [place for place in range(len(rows)) if place not in bad]
    packed = data.molecules.packed
    assert [d["row"] for d in data.dropped_rows] == bad and all(d["reason"] for d in data.dropped_rows)
    assert packed.sample_id.tolist() == good and packed.num_atoms.tolist() == [place + 1 for place in good]
    wanted = torch.tensor([[float("nan") if rows[place]["y"] is None else rows[place]["y"]] for place in good])
    torch.testing.assert_close(packed.y, wanted, equal_nan=True, rtol=0, atol=0)
    assert [data.original_ids[place] for place in good] == [rows[place]["id"].strip() for place in good]
    if by_client:
        names, members = data.report()["client_names"], data.partition_record()["membership"]
        for name, places in zip(names, members, strict=True):
            assert places == [place for place in good if rows[place]["client"] == name]


@st.composite
def graphs(draw):
    size = draw(st.integers(1, 10))
    names = st.one_of(PRINTABLE.filter(str.strip), st.sampled_from(["NA", "nan", "null"]))
    ids = draw(st.lists(names, min_size=size, max_size=size))
    rows = [{"id": name.strip(), "label": draw(st.one_of(BLANK, st.sampled_from(["cat", "dog", "3", "3.0"]))),
             "client": draw(st.sampled_from(["north", "south", ""])),
             "wrong": draw(st.sampled_from([None] * 6 + ["feature", "blank", "id", "long"]))} for name in ids]  # fmt: skip
    links = draw(st.lists(st.tuples(st.integers(0, size), st.integers(0, size)), max_size=20))
    return rows, links


@QUICK
@given(graph=graphs(), dialect=dialects(), by_client=st.booleans(), policy=st.sampled_from(["raise", "drop"]))
def test_features_and_links_of_nodes_stay_where_they_belong(tmp_path_factory, graph, dialect, by_client, policy):
    rows, links = graph
    folder = tmp_path_factory.mktemp("g")
    lines, names = [], []
    for place, row in enumerate(rows):
        feature = {"feature": "seven", "blank": ""}.get(row["wrong"], number(place + 0.5, dialect))
        names.append("" if row["wrong"] == "id" else row["id"])
        line = [row["client"], names[-1], feature, row["label"]]
        lines.append([*line, "more"] if row["wrong"] == "long" else line)
    write(folder / "nodes.csv", [["site", "id", "f", "label"], *lines], dialect)
    ends = [*names, "-nobody-"]
    write(folder / "edges.csv", [["source", "target"], *([ends[a], ends[b]] for a, b in links)], dialect)
    first = {}
    for place, row in enumerate(rows):
        if row["wrong"] is None:
            first.setdefault(row["id"], place)
    kept = sorted(first.values())
    options = {"client_column": "site"} if by_client else {"num_clients": 1}
    data = GraphCSVDataModule(root=str(folder), features=["f"], unknown_ids=policy, classes=["3", "cat", "dog"], **options,
                              sparse_features=False, decimal=dialect["decimal"] if dialect["say"] else None)  # fmt: skip
    known = {*first, *names}  # a row that is too long keeps its id
    named = [pair for pair in ((ends[a], ends[b]) for a, b in links) if all(pair)]
    unknown = sum(not known.issuperset(pair) for pair in named)
    try:
        data.setup()
    except ValueError as error:
        said = str(error)
        if "no usable node" in said:
            assert not kept
        elif "is blank" in said:
            assert not any(rows[place]["client"] for place in kept)
        elif "names a node" in said:
            assert links and not any(ends[end] and ends[end] in known for pair in links for end in pair)
        else:
            names = "names" if unknown == 1 else "name"
            assert policy == "raise" and unknown and f"{unknown} of {len(links)} links {names} an id that no node has" in said
        return
    assert kept and (policy == "drop" or not unknown) and data.original_ids == names
    assert data.data.node_id.tolist() == kept and data.data.x.flatten().tolist() == [place + 0.5 for place in kept]
    number_of = {"3": 0, "3.0": 0, "cat": 1, "dog": 2}
    assert data.data.y.tolist() == [number_of.get(rows[place]["label"], -1) for place in kept]
    wanted = {frozenset((ends[a], ends[b])) for a, b in links if ends[a] in first and ends[b] in first and ends[a] != ends[b]}
    found = {frozenset(data.original_ids[kept[v]] for v in pair) for pair in data.data.edge_index.T.tolist()}
    assert found == wanted and data.data.edge_index.size(1) == 2 * len(wanted)
    assert [d["row"] for d in data.dropped_rows if "id" in d] == [place for place in range(len(rows)) if place not in kept]
    unusable = [place for place, pair in enumerate((ends[a], ends[b]) for a, b in links)
                if not set(first).issuperset(pair)]  # fmt: skip
    assert [d["row"] for d in data.dropped_rows if "link" in d] == unusable
    assert data.num_rows_read == len(rows) + len(links)
    counts = data.row_counts
    assert counts["nodes"] == {"read": len(rows), "left_out": len(rows) - len(kept)}
    assert counts["links"]["read"] == len(links) and counts["links"]["left_out"] == len(unusable)
    if by_client:
        members = dict(zip(data.client_names, data.partition_record()["membership"], strict=True))
        assert members == {name: [p for p in kept if rows[p]["client"] == name]
                           for name in sorted({rows[p]["client"] for p in kept} - {""})}  # fmt: skip
