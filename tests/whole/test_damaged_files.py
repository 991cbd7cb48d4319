"""Damaged files of all kinds: read, or refused with a message; never another error."""

import gzip
import io

import numpy as np
import pytest
import scipy.sparse as sp
from rdkit import Chem

from datamodules.molecules.own.files import read_file
from datamodules.molecules.sdf import read_records
from datamodules.tables.features import read_matrix
from datamodules.tables.table import Table, TableFormat

CSV = ("id,smiles,y\n" + "".join(f'a{i},"C{i}",{i}.5\n' for i in range(60))).encode()


def example(kind):
    file = io.BytesIO()
    if kind == "csv":
        return CSV
    if kind == "gz":
        return gzip.compress(CSV)
    if kind == "parquet":
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        rows = range(50)
        parquet.write_table(pa.table({"id": list(rows), "y": [i / 3 for i in rows], "s": ["x" * i for i in rows]}), file)
    elif kind == "npz":
        sp.save_npz(file, sp.random(20, 10, 0.3, format="csr", random_state=0))
    else:
        text = io.StringIO()
        with Chem.SDWriter(text) as writer:
            for smiles in ("CCO", "c1ccccc1", "CC(=O)[O-].[Na+]"):
                mol = Chem.MolFromSmiles(smiles)
                mol.SetProp("y", "1")
                writer.write(mol)
        return text.getvalue().encode()
    return file.getvalue()


def damaged(data, rng):
    """A few bytes changed, left out, put in or said twice."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 6)):
        place, length = int(rng.integers(len(data))), int(rng.integers(1, 40))
        noise = bytes(rng.integers(0, 256, length, dtype=np.uint8))
        said = bytes(data[max(place - 30, 0) : place])
        gone, new = [(1, noise[:1]), (length, b""), (0, noise), (0, said)][rng.integers(4)]
        data[place : place + gone] = new
        data = data or bytearray(b"x")
    return bytes(data)


def read(kind, path):
    if kind == "npz":
        return read_matrix(path)
    if kind == "sdf":
        found = read_file(path, "f", TableFormat(), {}, None, 0)
        assert len(read_records(found.blocks, 0).reason) == found.size
        return found
    table = Table(path)
    chunk = table.read(table.columns)
    assert all(len(texts) == chunk.size for texts in chunk.columns.values())
    return chunk


@pytest.mark.parametrize("kind", ["csv", "gz", "parquet", "npz", "sdf"])
def test_damaged_files_are_read_or_refused(tmp_path, kind):
    whole, path, rng = example(kind), tmp_path / f"f.{kind}", np.random.default_rng(7)
    path.write_bytes(whole)
    assert read(kind, path) is not None
    refused = 0
    for _ in range(150):
        path.write_bytes(damaged(whole, rng))
        try:
            read(kind, path)
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 0
