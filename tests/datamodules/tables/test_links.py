"""A table of links by hand."""

import numpy as np

from datamodules.tables.links import describe_links, read_links
from datamodules.tables.table import TableFormat


def test_links_are_positions_and_all_others_are_counted(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text("from,to,kind\na,b,1\nb,gone,1\na,far,1\nfar,away,1\na,,1\n")
    links = read_links(path, "from", "to", TableFormat(), {"a": 0, "b": 1, "gone": -1})
    assert links.pairs.tolist() == [[0], [1]] and (links.lines, links.touching, links.of_dropped) == (5, 4, 1)
    assert (links.num_unknown, links.num_bad, links.elsewhere) == (2, 1, {(0, "far")})
    assert (links.num_elsewhere, links.num_left_out) == (1, 4)
    assert [(line["row"], line["reason"]) for line in links.left_out] == [
        (1, "no link: the row of a node at its end cannot be used"), (2, "no link: one end is no node"),
        (3, "no link: neither end is a node"), (4, "no link: an id is blank")]  # fmt: skip
    assert links.notices[0].startswith(f"`{path}`: not used: 'kind'")


def test_what_is_among_the_links():
    # 0 > 1 twice, 1 > 0, 1 > 2, and self-loops: 2 > 2 twice, 3 > 3 of a node without another link
    pairs = np.array([[0, 0, 1, 1, 2, 2, 3], [1, 1, 0, 2, 2, 2, 3]])
    assert describe_links(pairs, 4) == {"self_loops": 3, "repeated": 2, "two_way": 2, "undirected": 2, "only_self_loops": 1}
