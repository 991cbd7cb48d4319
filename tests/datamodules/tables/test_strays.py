"""What programs leave beside tables is known by its name, and tables are not."""

import pytest

from datamodules.tables.strays import is_stray


@pytest.mark.parametrize(
    "name",
    ["~$x.csv", ".~lock.x.csv#", "Thumbs.db", ".DS_Store", "desktop.ini", "._x.csv", "x.csv~", "x.csv.bak", "X.CSV.BAK",
     "#x.csv#", ".x.csv.swp", "x.csv.part", "__MACOSX", ".git"],
)  # fmt: skip
def test_strays(name):
    assert is_stray(name)


@pytest.mark.parametrize("name", ["x.csv", "_x.csv", "x.tsv.gz", "x.sdf", "x~y.csv", "bak.csv", "north", "old", "x.csv.zip"])
def test_data(name):
    assert not is_stray(name)
