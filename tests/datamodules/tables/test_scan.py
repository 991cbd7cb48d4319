"""A look at a file before anything is parsed, in bounded memory."""

import gzip
import tracemalloc

import pytest

from datamodules.tables.scan import MAX_LINE, scan


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(ValueError, match="is a folder"):
        scan(tmp_path)
    with pytest.raises(ValueError, match="is no file"):
        scan(tmp_path / "x.csv")


@pytest.mark.parametrize("packed", [False, True])
def test_an_endless_line_is_refused_without_being_read_into_memory(tmp_path, packed):
    """A sparse file of 1 GiB without a line end has zero bytes and is refused at once; one of text at ``MAX_LINE``."""
    path = tmp_path / "t.csv"
    with open(path, "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ValueError, match="zero byte"):
        scan(path)
    with gzip.open(path, "wb", 1) if packed else open(path, "wb") as file:
        file.write(b"id,label\n")
        for _ in range((MAX_LINE >> 20) + 2):
            file.write(b"a" * (1 << 20))
    tracemalloc.start()
    with pytest.raises(ValueError, match="line of more than 16 MiB"):
        scan(path)
    assert tracemalloc.get_traced_memory()[1] < MAX_LINE
    tracemalloc.stop()
