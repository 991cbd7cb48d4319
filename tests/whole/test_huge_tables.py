"""Large files: memory stays within a stated multiple of what is kept. Outside the quick suite: ``pytest -m slow``.

Each runs in a process of its own and prints by how much its peak memory grew over that after the imports.
"""

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.slow
HEAD = """
from fl_lightning.engine.memory import peak_rss_bytes
import numpy as np
from datamodules import GraphCSVDataModule, MoleculeCSVDataModule
def peak():
    return peak_rss_bytes() / 2**20
before = peak()
"""


def growth(code, folder):
    """Megabytes that the process grew by, and what else it printed."""
    script = HEAD + textwrap.dedent(code) + "\nprint(peak() - before)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=folder, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    *said, mb = done.stdout.split("\n")[:-1]
    return float(mb), said


def test_a_million_links(tmp_path):
    """14 MB of text, 16 MB as pairs of numbers; cleaning sorts them and keeps both directions."""
    code = """
        rng = np.random.default_rng(0)
        size, links = 100_000, 1_000_000
        with open("nodes.csv", "w") as file:
            file.write("id,f,label\\n")
            file.writelines(f"v{i},{i % 7},{i % 3}\\n" for i in range(size))
        with open("edges.csv", "w") as file:
            file.write("source,target\\n")
            for start in range(0, links, 50_000):
                file.writelines(f"v{a},v{b}\\n" for a, b in rng.integers(size, size=(50_000, 2)).tolist())
        data = GraphCSVDataModule(root=".", partition="random", num_clients=5)
        data.setup()
        print(data.report()["links"]["lines"], data.data.num_nodes)
    """
    mb, said = growth(code, tmp_path)
    assert said[-1] == "1000000 100000" and mb < 500, mb


def test_a_hundred_thousand_molecules(tmp_path):
    code = """
        with open("m.csv", "w") as file:
            file.write("id,smiles,y\\n")
            file.writelines(f"m{i},{'C' * (1 + i % 12)}{'N' * (i % 3)}c1ccccc1,{i / 7:.3f}\\n" for i in range(100_000))
        data = MoleculeCSVDataModule(files="m.csv", id_column="id", num_clients=5, partition="iid", cache_dir=None,
                                     featurise_workers=0)
        data.setup()
        y = data.molecules.packed.y.flatten().numpy()
        assert np.allclose(y, np.round(np.arange(100_000) / 7, 3), atol=1e-3)
        print(len(data.molecules))
    """
    mb, said = growth(code, tmp_path)
    assert said[-1] == "100000" and mb < 1000, mb


def test_a_gigabyte_in_one_line_and_a_packed_one(tmp_path):
    code = """
        import gzip
        from datamodules.tables.scan import scan
        from pathlib import Path
        with open("long.csv", "wb") as file:
            file.write(b"id,smiles\\n")
            for _ in range(1024):
                file.write(b"C" * (1 << 20))
        with gzip.open("bomb.csv", "wb", 1) as file:
            file.write(b"id,smiles\\n")
            for _ in range(1024):
                file.write(b"C" * (1 << 20))
        before = peak()
        for name in ("long.csv", "bomb.csv"):
            try:
                scan(Path(name))
            except ValueError as error:
                print("line of more than 16 MiB" in str(error))
    """
    mb, said = growth(code, tmp_path)
    assert said[-2:] == ["True", "True"] and mb < 20, mb
