"""Rows that cannot be used: counted at the end of a fit, and too many of them stop it before round 1."""

import lightning as L
import pytest
from federations import CPU, Central, Linear, Table, clients, federate

from fl_lightning import FederatedTrainer
from fl_lightning.central import fit_centrally
from fl_lightning.reporting.left_out import LeftOut, RowsLeftOut
from fl_lightning.reporting.tables import score_lines


def dropping(kind, dropped, read):
    """A data module that lists so many rows, of so many that it read (``None``: it does not say)."""

    class Dropping(kind):
        dropped_rows = [{"row": r, "reason": "blank" if r % 3 else "no number", "file": "a.csv"} for r in range(dropped)]

    if read is not None:
        Dropping.num_rows_read = read
    return Dropping


@pytest.mark.parametrize(
    ("dropped", "read", "text"),
    [
        (50, 56, "50 of 56 rows were left out: see `dropped_rows` in results.json, or `fl-lightning inspect`"),
        (1, 56, "1 of 56 rows was left out: see"),
        (7, None, "7 rows were left out: see"),
        (1, None, "1 row was left out: see"),
    ],
)
def test_the_line(dropped, read, text):
    assert LeftOut.of(dropping(Central, dropped, read)()).line.startswith(text)


def test_nothing_left_out_is_nothing_said():
    assert LeftOut.of(Table(3, 1)).line is None and LeftOut.of([]).line is None
    assert LeftOut.of(dropping(Central, 0, 9)()).line is None


def test_data_modules_of_clients_are_added_and_named():
    found = LeftOut.of([dropping(Table, 1, 5)(3, 1), Table(3, 1), dropping(Table, 2, 6)(3, 1)])
    assert [row["client"] for row in found.rows] == [0, 2, 2] and found.num_rows_read is None  # one does not tell
    assert LeftOut.of([dropping(Table, 1, 5)(3, 1), dropping(Table, 2, 6)(3, 1)]).num_rows_read == 11


def test_half_is_not_too_many_and_one_more_is():
    LeftOut.of(dropping(Central, 28, 56)()).check(0.5)
    LeftOut.of(dropping(Central, 56, 56)()).check(1.0)
    LeftOut.of(dropping(Central, 99, None)()).check(0.5)
    with pytest.raises(ValueError, match="29 of 56 rows of the data cannot be used, more than .*max_dropped_share: 0.5"):
        LeftOut.of(dropping(Central, 29, 56)()).check(0.5)


class Graph(Central):
    """100 nodes and 300 links, some of which could not be used."""

    def __init__(self, nodes, links, elsewhere=0):
        self.row_counts = {"nodes": {"read": 100, "left_out": nodes},
                           "links": {"read": 300, "left_out": links, "leading_elsewhere": elsewhere}}  # fmt: skip
        self.dropped_rows = [{"row": r, "reason": "blank", "id": str(r)} for r in range(nodes)]
        self.dropped_rows += [{"row": r, "reason": "no link", "link": "a - b", "file": "e.csv"} for r in range(links)]


def test_nodes_and_links_are_counted_apart_and_the_worst_kind_stops_a_fit():
    assert LeftOut.of(Graph(2, 14, 3)).line.startswith("2 of 100 nodes and 14 of 300 links were left out: see")
    assert LeftOut.of(Graph(0, 1)).line.startswith("1 of 300 links was left out")
    assert LeftOut.of(Graph(0, 0)).line is None and LeftOut.of(Graph(2, 14)).num_rows_read == 400
    LeftOut.of(Graph(50, 150)).check(0.5)
    LeftOut.of(Graph(0, 200, 50)).check(0.5)  # what leads elsewhere was left out because the config says so
    with pytest.raises(ValueError, match=r"^70 of 100 nodes of the data cannot be used, more than .*\n  70 x blank .*\n`fl-li"):
        LeftOut.of(Graph(70, 10)).check(0.5)
    with pytest.raises(ValueError, match=r"^151 of 300 links of .*\n  151 x no link \(the first: row 0 of e.csv"):
        LeftOut.of(Graph(2, 151)).check(0.5)
    with pytest.raises(ValueError, match="^70 of 100 nodes and 160 of 300 links of the data"):
        LeftOut.of(Graph(70, 160)).check(0.5)
    both = LeftOut.of([Graph(2, 14, 3), Graph(1, 0)])
    assert both.counts == {"nodes": {"read": 200, "left_out": 3},
                           "links": {"read": 600, "left_out": 14, "leading_elsewhere": 3}}  # fmt: skip


class Sites(Central):
    """A table whose rows say whose they are; the last ``bad`` of 12 rows of `b`, and all 3 of `c`, could not be used."""

    def __init__(self, bad=12, *tables):
        super().__init__(*tables)
        self.row_clients = ["a"] * 40 + ["b"] * 12 + [""] + ["c"] * 3
        self.num_rows_read = len(self.row_clients)
        rows = [*range(52 - bad, 52), 52, 53, 54, 55]
        self.dropped_rows = [{"row": row, "reason": "'?' is not a number", "file": "b.csv"} for row in rows]
        self.lost_clients = ["b", "c"] if bad == 12 else ["c"]


def test_a_client_that_has_lost_most_of_its_rows_stops_a_fit_and_is_named():
    with pytest.raises(ValueError) as caught:
        LeftOut.of(Sites()).check(0.5)
    first, second, *_ = str(caught.value).split("\n")
    assert first == ("12 of 12 rows of client 'b' cannot be used, more than `federation.max_dropped_share: 0.5` allows of any "
                     "client:")  # fmt: skip
    assert second == "  12 x '?' is not a number (the first: row 40 of b.csv)"
    LeftOut.of(Sites(6)).check(0.5)  # the three of `c` are too few to stop for
    LeftOut.of(Sites()).check(1.0)
    with pytest.raises(ValueError, match="^12 of 20 rows of client 1 cannot be used, .* of any client"):
        LeftOut.of([dropping(Table, 0, 80)(3, 1), dropping(Table, 12, 20)(3, 1)]).check(0.5)


def test_clients_without_a_usable_row_are_named_where_the_fit_ends(tmp_path):
    data = Sites(12, *clients((8, 9)))
    with pytest.warns(RowsLeftOut, match="16 of 56 rows were left out: .*; taking no part, .* usable row: clients 'b', 'c'"):
        fed = federate(tmp_path, data=data, num_rounds=1, max_dropped_share=1.0)
    assert fed.results["lost_clients"] == ["b", "c"]
    assert score_lines(fed.results)[-1].endswith("; taking no part, for want of a usable row: clients 'b', 'c'")
    data.dropped_rows, data.lost_clients = [], ["d"]  # of a file without a row
    assert LeftOut.of(data).line == "taking no part, for want of a usable row: client 'd'"


def test_the_error_has_reasons_and_a_way_on():
    with pytest.raises(ValueError) as caught:
        LeftOut.of([dropping(Table, 8, 9)(3, 1)]).check(0.5)
    lines = str(caught.value).split("\n")
    assert lines[1] == "  5 x blank (the first: row 1 of a.csv of client 0)"
    assert lines[2] == "  3 x no number (the first: row 0 of a.csv of client 0)"
    assert "`fl-lightning inspect` lists them" in lines[3] and "`federation.max_dropped_share: 1.0`" in lines[3]


def test_a_federated_fit_stops_before_round_one_and_goes_on_if_told_to(tmp_path, recwarn):
    data = dropping(Central, 7, 9)(*clients((8, 9)))
    with pytest.raises(ValueError, match="7 of 9 rows of the data cannot be used"):
        federate(tmp_path, data=data, num_rounds=1)
    assert not list(tmp_path.iterdir())
    fed = federate(tmp_path, data=data, num_rounds=1, max_dropped_share=0.8)
    assert [str(w.message)[:29] for w in recwarn if w.category is RowsLeftOut] == ["7 of 9 rows were left out: see"[:29]]
    assert score_lines(fed.results)[-1].startswith("7 of 9 rows were left out")
    assert fed.validate(Linear(), data)["global"] == fed.results["val"]["global"]  # only `fit` asks


def test_a_central_fit_does_the_same(tmp_path):
    data = dropping(Central, 7, 9)(*clients((8, 9)))
    stock = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    arguments = (stock, Linear(), data, None, "c", {"default_root_dir": str(tmp_path)})
    with pytest.raises(ValueError, match="7 of 9 rows of the data cannot be used"):
        fit_centrally(*arguments)
    assert not list(tmp_path.iterdir())
    with pytest.warns(RowsLeftOut, match="7 of 9 rows were left out"):
        found, _ = fit_centrally(*arguments, max_dropped_share=1.0)
    assert len(found["dropped_rows"]) == 7


@pytest.mark.parametrize("share", [-0.1, 1.5, 50])
def test_a_share_is_a_share(share):
    with pytest.raises(ValueError, match="`federation.max_dropped_share` is a share from 0.0 to 1.0"):
        FederatedTrainer(trainer=CPU, max_dropped_share=share)
