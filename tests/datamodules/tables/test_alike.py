"""Names that differ in case or blanks only, by hand."""

from datamodules.tables.alike import find_clients_alike, group_alike


def test_names_alike():
    assert group_alike(["East", "west", "east", "EAST ", "north  side", "north side", "west"]) == [
        ["East", "east", "EAST "],
        ["north  side", "north side"],
    ]
    (found,) = find_clients_alike(["East", "west", "east"])
    assert (found["kind"], found["level"], found["count"]) == ("clients_alike", "finding", 2)
    assert found["message"] == "2 clients differ in case or blanks only: 'East', 'east'. Is it one client?"
    assert find_clients_alike(["East", "west", "east side"]) == []
