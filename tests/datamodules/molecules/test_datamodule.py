"""Molecular data modules: counts of the real files, batches equal to PyG's, the federation's seam, findings."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from molecule_fixtures import TableDataModule, kinds, many, ready
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import QM9, MoleculeNet

from datamodules.molecules import (
    ChEMBLDataModule,
    MoleculeDataModule,
    MoleculeNetDataModule,
    QM9DataModule,
    featurise,
    official_split,
)

SHARED = Path(__file__).parents[3].parent / "shared" / "data"
real_data = pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data beside the checkout")


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("molecules"))


# Real files: counts of ../shared/data/README.md

COUNTS = [  # name, rows dropped, molecules, tasks, molecules of several parts, without bonds, repeats
    ("FreeSolv", 0, 642, 1, 0, 3, 0),
    ("ESOL", 0, 1128, 1, 0, 1, 11),
    ("BACE", 0, 1513, 1, 0, 0, 0),
    ("BBBP", 11, 2039, 1, 105, 0, 64),
    ("ClinTox", 4, 1480, 2, 14, 1, 19),
    ("SIDER", 0, 1427, 27, 182, 31, 0),
    ("Tox21", 8, 7823, 12, 244, 19, 0),
    pytest.param("Lipo", 0, 4200, 1, 1, 0, 0, marks=pytest.mark.slow),
]


@real_data
@pytest.mark.parametrize("name, dropped, size, tasks, salts, bare, repeats", COUNTS)
def test_counts_of_the_real_files(cache, name, dropped, size, tasks, salts, bare, repeats):
    start = time.process_time()  # of one process: other load does not count
    data = ready(MoleculeNetDataModule(root=str(SHARED), name=name, cache_dir=cache, split="official", featurise_workers=0))
    assert time.process_time() - start < 20
    molecules = data.molecules
    assert len(molecules) == size and len(molecules.dropped_rows) == dropped
    assert data.schema["num_tasks"] == tasks and molecules.packed.y.shape == (size, tasks)
    assert int((molecules.num_fragments > 1).sum()) == salts
    assert int((molecules.packed.edge_ptr.diff() == molecules.packed.num_atoms).sum()) == bare
    assert size - len(set(molecules.canonical)) == repeats
    train = size * 8 // 10
    assert [len(part) for part in official_split(size).values()] == [
        data.num_train_samples,
        data.num_val_samples,
        data.num_test_samples,
    ]
    assert data.num_train_samples == train and sum(data.report()["client_sizes"]) == train
    # Labels and SMILES as PyG's MoleculeNet finds them in the lines of the file.
    _, _, stem, smiles_at, labels_at = MoleculeNet.names[name.lower()]
    lines = (SHARED / "moleculenet" / name.lower() / "raw" / f"{stem}.csv").read_text().split("\n")[1:-1]
    for row in [*range(0, size, 97), size - 1]:
        position = int(data.molecules.packed.sample_id[row])
        values = re.sub(r"\".*\"", "", lines[position]).split(",")
        labels = values[labels_at] if isinstance(labels_at, slice) else [values[labels_at]]
        expected = torch.tensor([float(label) if label else float("nan") for label in labels])
        torch.testing.assert_close(molecules.packed.y[row], expected, equal_nan=True)
        graph = featurise(values[smiles_at])
        assert torch.equal(molecules.packed.collate([row]).x, graph.x)
    if name == "Tox21":
        missing = sum(label == "" for line in lines for label in line.split(",")[:12])
        assert missing == 16026  # of all 7831 rows
        assert int(molecules.packed.y.isnan().sum()) == kinds(data)["missing_labels", None] == 16012


@real_data
def test_same_labels_and_number_of_graphs_as_pyg(cache, tmp_path):
    shutil.copytree(SHARED / "moleculenet" / "freesolv" / "raw", tmp_path / "freesolv" / "raw")
    theirs = MoleculeNet(str(tmp_path), "FreeSolv")
    ours = ready(MoleculeNetDataModule(root=str(tmp_path), name="freesolv", cache_dir=cache)).molecules.packed
    assert len(theirs) == len(ours) and torch.equal(theirs.y, ours.y)
    assert torch.equal(torch.tensor([graph.num_nodes for graph in theirs]), ours.num_atoms)


@real_data
def test_qm9_equals_pyg(cache, tmp_path):
    shutil.copytree(SHARED / "qm9" / "raw", tmp_path / "raw")
    theirs = QM9(str(tmp_path))
    data = ready(QM9DataModule(root=str(tmp_path), cache_dir=cache))
    packed = data.molecules.packed
    assert len(packed) == len(theirs) == 2013 and data.num_train_samples == 1610
    torch.testing.assert_close(packed.y, theirs.y[:, [0, 1, 2, 3, 4, 5, 6, 12, 13, 14, 15, 11]])
    assert torch.equal(packed.nodes["z"].long(), theirs.z) and torch.equal(packed.nodes["pos"], theirs.pos)
    batch = next(iter(data.client_datamodules()[0].train_dataloader()))
    assert sorted(batch.keys()) == ["batch", "pos", "ptr", "sample_id", "scaffold", "y", "z"]
    assert batch.y.shape == (64, 12) and batch.z.dtype == torch.int64
    one = theirs[int(batch.sample_id[3])]
    assert torch.equal(batch.pos[batch.batch == 3], one.pos) and torch.equal(batch.z[batch.batch == 3], one.z)
    assert data.units[:5] == ["D", "a0^3", "eV", "eV", "eV"] and data.schema["metric"] == "mae"
    assert data.part_sizes(130_831) == (110_000, 10_000, 10_831)
    scaffold = data.molecules.scaffold
    assert scaffold[0] == "" and len(set(scaffold)) > 500  # row 0 is methane


def test_qm9_leaves_out_the_listed_molecules_and_survives_bad_records(tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    columns = "mol_id A B C mu alpha homo lumo gap r2 zpve u0 u298 h298 g298 cv u0_atom u298_atom h298_atom g298_atom"
    (raw / "gdb9.sdf.csv").write_text(
        "\n".join([columns.replace(" ", ",")] + [",".join([f"gdb_{i + 1}", *map(str, range(i, i + 19))]) for i in range(4)])
        + "\n"
    )
    good = (
        "gdb_1\n\n\n  2  1  0  0  0  0  0  0  0  0999 V2000\n"
        + "".join(f"{x:10.4f}    0.0000    0.0000 O   0  0\n" for x in (0.0, 1.2))
        + "  1  2  1  0\nM  END\n$$$$\n"
    )
    hyper = good.replace("  2  1  0", "  2  1  0", 1).replace("O   0", "F   0").replace("1  2  1", "1  2  3")
    (raw / "gdb9.sdf").write_text(good + "gdb_2\njunk\n$$$$\n" + hyper.replace("gdb_1", "gdb_3") + good.replace("_1", "_4"))
    (raw / "uncharacterized.txt").write_text("\n" * 9 + "4 x\n\nend\n")
    data = ready(QM9DataModule(root=str(tmp_path), num_clients=1, cache_dir=None, fractions=(1.0, 0.0, 0.0)))
    assert data.molecules.packed.sample_id.tolist() == [0, 2]  # a triple-bonded F2 is kept: it has a geometry
    assert [(drop["row"], drop["reason"][:15]) for drop in data.molecules.dropped_rows] == [
        (1, "no molecule wit"),
        (3, "uncharacterised"),
    ]
    assert data.num_rows_read == 4
    assert [(drop["file"], drop["file_row"]) for drop in data.dropped_rows] == [(str(raw / "gdb9.sdf"), row) for row in (1, 3)]
    # Row 2 holds 2, 3, 4, ...: homo is the sixth number, u0_atom the sixteenth.
    assert data.molecules.packed.y[1, 2].item() == pytest.approx((2 + 5) * 27.211386246, rel=1e-6)
    assert data.molecules.packed.y[1, 7].item() == pytest.approx((2 + 15) * 0.04336414, rel=1e-6)
    (raw / "gdb9.sdf").write_text(good)
    with pytest.raises(ValueError, match="`data.init_args.fragments: largest` is for bonds, but QM9"):
        QM9DataModule(root=str(tmp_path), fragments="largest")
    with pytest.raises(ValueError, match="has 1 molecules and gdb9.sdf.csv 4 rows"):
        QM9DataModule(root=str(tmp_path), cache_dir=None).setup()


def test_qm9s_labels_belong_to_the_molecule_of_that_name(tmp_path):
    """Both files have three molecules, but not the same; and QM9's list of numbers means names, not places."""
    raw = tmp_path / "raw"
    raw.mkdir()
    columns = "mol_id A B C mu alpha homo lumo gap r2 zpve u0 u298 h298 g298 cv u0_atom u298_atom h298_atom g298_atom"

    def read(records, rows, left_out=""):
        atom = "\n\n\n  1  0  0  0  0  0  0  0  0  0999 V2000\n    0.0000    0.0000    0.0000 O   0  0\nM  END\n$$$$\n"
        (raw / "gdb9.sdf").write_text("".join(name + atom for name in records))
        (raw / "gdb9.sdf.csv").write_text("\n".join([columns.replace(" ", ","), *(",".join([r, *"1" * 19]) for r in rows)]))
        (raw / "uncharacterized.txt").write_text("\n" * 9 + left_out + "\nend\n")
        return ready(QM9DataModule(root=str(tmp_path), num_clients=1, cache_dir=None, fractions=(1.0, 0.0, 0.0)))

    with pytest.raises(
        ValueError,
        match=r"molecule 1 \(from 0\) of gdb9.sdf is 'gdb_3', but row 1 of gdb9.sdf.csv has the "
        r"labels of 'gdb_2' \(`mol_id`\).*same order: replace",
    ):
        read(["gdb_1", "gdb_3", "gdb_4"], ["gdb_1", "gdb_2", "gdb_3"])
    with pytest.raises(ValueError, match="'gdb_7', but row 0"):
        read(["gdb_7"], ["gdb_8", "gdb_9"])
    data = read(["gdb_1", "gdb_68", "gdb_70"], ["gdb_1", "gdb_68", "gdb_70"], "3 x\n68 x\n")
    assert [drop["row"] for drop in data.dropped_rows] == [1]
    assert len(read(["", ""], ["gdb_1", "gdb_2"]).molecules) == 2  # without names there is only the place


def test_moleculenets_columns_are_found_by_name_where_they_have_one(tmp_path):
    raw = tmp_path / "freesolv" / "raw"
    raw.mkdir(parents=True)
    rows = [f"{ring},{i / 10},{-i}" for i, ring in enumerate(many(16))]

    def read(header, lines):
        (raw / "SAMPL.csv").write_text("\n".join([header, *lines]) + "\n")
        data = MoleculeNetDataModule(root=str(tmp_path), name="FreeSolv", cache_dir=None, num_clients=1, fractions=(1, 0, 0))
        return ready(data).molecules.packed.y.flatten().tolist()

    assert read("iupac,smiles,calc,expt", [f"n,{row}" for row in rows]) == [-float(i) for i in range(16)]
    with pytest.raises(
        ValueError,
        match=r"SAMPL.csv` is not the published table of freesolv: there column 1 \(from 0\) has "
        "the SMILES.*here the columns are 'smiles', 'expt', 'calc'",
    ):
        read("smiles,expt,calc", rows)
    (tmp_path / "tox21" / "raw").mkdir(parents=True)
    (tmp_path / "tox21" / "raw" / "tox21.csv").write_text("NR-AR,NR-AhR,smiles\n" + "0,1,CC\n" * 9)
    with pytest.raises(ValueError, match="not the published table of tox21: there the last column has the SMILES"):
        ready(MoleculeNetDataModule(root=str(tmp_path), name="Tox21", cache_dir=None))


def test_embedded_set_needs_no_files(cache):
    data = ready(ChEMBLDataModule(cache_dir=cache))
    assert len(data.molecules) == 1017 and not data.molecules.dropped_rows
    assert data.molecules.packed.y[:3, 0].tolist() == pytest.approx([5.48, 5.48, 5.50])
    assert [len(data.part(name)) for name in ("train", "val", "test")] == [813, 102, 102]


@pytest.mark.parametrize(
    "name, error",
    [("Cora", "name` must be one of ESOL, FreeSolv, Lipo.*BACE"), ("HIV", r"HIV\.csv.*hiv.raw.*could not be downloaded")],
)
def test_unknown_and_missing_sets_say_what_to_do(tmp_path, monkeypatch, name, error):
    def offline(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    with pytest.raises(ValueError, match=error):
        MoleculeNetDataModule(root=str(tmp_path), name=name).setup()
    with pytest.raises(ValueError, match="gdb9.sdf.*qm9.raw.*could not be downloaded"):
        QM9DataModule(root=str(tmp_path)).setup()


def test_csv_oddities(tmp_path):
    raw = tmp_path / "hiv" / "raw"
    raw.mkdir(parents=True)
    lines = ["\ufeffsmiles,activity,HIV_active"] + [f'{ring},"a, b",{i % 2}' for i, ring in enumerate(many(40))]
    lines[5] = "C1CC1,CI,"  # a blank label: row 4
    lines[6] = "c1ccccc1,CI,NaN"
    (raw / "HIV.csv").write_bytes("\r\n".join([*lines[:9], "", *lines[9:]]).encode() + b"\r\n")
    data = ready(MoleculeNetDataModule(root=str(tmp_path), name="HIV", cache_dir=None, num_clients=2))
    assert data.task == "classification" and data.schema["metric"] == "auroc"
    assert data.molecules.packed.y[:8, 0].isnan().tolist() == [False] * 4 + [True, True, False, False]
    assert data.molecules.packed.sample_id.tolist() == list(range(40))
    for bad, error in (
        ("CC,CI,yes", "row 4: 'yes' is not a number"),
        ("CC,CI,2", "row 4 has label 2.*0, 1 or blank"),
        ("CC,CI,inf", "row 4: the label is infinite"),
        ('CC,"CI,1', "is not a CSV file"),
    ):
        (raw / "HIV.csv").write_text("\n".join([*lines[:5], bad, *lines[6:]]))
        with pytest.raises(ValueError, match=error):
            MoleculeNetDataModule(root=str(tmp_path), name="HIV", cache_dir=None).setup()


# Batches


def test_batches_equal_pygs(cache):
    packed = ready(ChEMBLDataModule(cache_dir=cache)).molecules.packed
    singles = packed.data_list()
    chosen = [5, 1016, 0, 5, 77]
    ours, theirs = packed.collate(chosen), Batch.from_data_list([singles[i] for i in chosen])
    assert type(ours) is type(theirs) and set(ours.keys()) == set(theirs.keys())
    for name in theirs.keys():
        assert torch.equal(ours[name], theirs[name]) and ours[name].dtype == theirs[name].dtype
    assert ours.num_graphs == theirs.num_graphs == 5 and ours.num_nodes == theirs.num_nodes
    for mine, other in zip(ours.to_data_list(), theirs.to_data_list(), strict=True):
        assert isinstance(mine, Data) and all(torch.equal(mine[name], other[name]) for name in other.keys())
    again = packed.select(chosen).collate(range(5))
    assert all(torch.equal(again[name], ours[name]) for name in ours.keys() if name != "environment")  # other numbers
    assert len(packed.select([])) == 0 and packed.select([]).collate([]).num_graphs == 0


def test_collating_64_molecules_takes_less_than_a_millisecond(cache):
    packed = ready(ChEMBLDataModule(cache_dir=cache)).molecules.packed
    chosen = torch.randperm(len(packed), generator=torch.Generator().manual_seed(0))[:64].tolist()
    times = []
    for _ in range(100):
        start = time.process_time()
        packed.collate(chosen)
        times.append(time.process_time() - start)
    assert min(times) < 1e-3


def test_loaders_are_cached_cover_all_and_shuffle_from_the_global_state(cache):
    data = ready(ChEMBLDataModule(cache_dir=cache, client_holdout=0.1))
    client = data.client_datamodules()[0]
    assert client is data.client_datamodules()[0] and client.train_dataloader() is client.train_dataloader()

    def epoch(seed):
        torch.manual_seed(seed)
        return [batch.sample_id.tolist() for batch in client.train_dataloader()]

    assert epoch(1) == epoch(1) != epoch(2)
    rows = sorted(sum(epoch(1), []))
    assert rows == client.packed.sample_id[client.part("train").positions].tolist() and len(rows) == len(set(rows))
    assert [len(batch) for batch in epoch(1)][:-1] == [64] * (len(rows) // 64)  # the short one is last and kept
    assert sum([batch.sample_id.tolist() for batch in client.sequential_train_dataloader()], []) == rows
    everything = sum([batch.sample_id.tolist() for batch in client.predict_dataloader()], [])
    assert everything == client.packed.sample_id.tolist() == sorted(everything)
    own = pickle.loads(pickle.dumps(client))  # to worker processes
    assert own.fingerprint() == client.fingerprint() and len(pickle.dumps(client)) < len(pickle.dumps(data)) / 2


def test_small_clients_and_empty_parts():
    data = ready(TableDataModule(many(30), np.arange(30.0), num_clients=4, partition="iid"))
    for client in data.client_datamodules():
        [batch] = client.train_dataloader()  # 6 molecules: one batch
        assert batch.num_graphs == client.num_train_samples == 6
        assert client.val_dataloader() == client.test_dataloader() == [] and client.num_test_samples == 0
    one = ready(TableDataModule(many(2), [1.0, 2.0], num_clients=1, fractions=(1.0, 0.0, 0.0), batch_size=1))
    assert [batch.y.tolist() for batch in one.sequential_train_dataloader()] == [[[1.0], [2.0]]]
    assert len(one.train_dataloader()) == 2


# The federation's seam

PARTITIONS = [
    {"partition": "scaffold_lda"},
    {"partition": "iid"},
    {"partition": "random"},
    {"partition": "label"},
    {"partition": "scaffold_lda", "acyclic": "spread", "alpha": 1.0},
    {"split": "scaffold"},
    {"partition": "column", "client_column": "site"},
    {"client_holdout": 0.4},
]


@pytest.mark.parametrize("options", PARTITIONS, ids=str)
def test_clients_share_the_training_part(options):
    sites = {"site": [f"s{i % 3}" for i in range(80)]}
    data = ready(TableDataModule(many(), np.arange(80.0), columns=sites, num_clients=3, **options))
    stages, ids = ("train", "val", "test"), data.molecules.packed.sample_id
    server = {name: ids[data.division.server[name]].tolist() for name in stages}
    assert sorted(sum(server.values(), [])) == list(range(80))
    record = data.partition_record()
    assert sorted(sum(record["membership"], [])) == sorted(server["train"]) and not record["unassigned"]
    assert json.loads(json.dumps(record)) == record and len(record["sha256"]) == 64
    for client, rows in zip(data.client_datamodules(), record["membership"], strict=True):
        assert client.packed.sample_id.tolist() == rows
        for batch in client.train_dataloader():
            assert batch.y[:, 0].tolist() == batch.sample_id.tolist()  # no label moves by a row
        held = [set(client.packed.sample_id[client.part(name).positions].tolist()) for name in stages]
        assert sum(map(len, held)) == len(rows) and set.union(*held) == set(rows)
    trained = sorted(row for batch in data.train_dataloader() for row in batch.sample_id.tolist())
    assert trained == sorted(
        row for client in data.client_datamodules() for batch in client.train_dataloader() for row in batch.sample_id.tolist()
    )  # central = union of the clients
    report = data.report()
    assert json.loads(json.dumps(report)) == report
    assert sum(report["client_sizes"]) == len(server["train"]) <= 64 and report["num_clients"] == 3
    again = ready(TableDataModule(many(), np.arange(80.0), columns=sites, num_clients=3, **options))
    assert again.fingerprint() == data.fingerprint() and again.partition_record() == record


def test_official_partition_reports_what_it_loses():
    data = ready(
        TableDataModule(
            many(), np.arange(80.0), partition="official", alpha=1.0, num_clients=2, min_client_size=8, split="official"
        )
    )
    lost = data.partition_record()["unassigned"]
    labels = data.division.groups[lost]
    assert len(lost) > 0 and len(set(labels)) == 1 and kinds(data)["unassigned", None] == len(lost)


def test_fingerprint_changes_with_whatever_matters():
    base = {"smiles": many(), "y": np.arange(80.0), "num_clients": 3}
    first = ready(TableDataModule(**base)).fingerprint()
    changes = [
        {"seed": 1},
        {"split_seed": 1},
        {"alpha": 5.0},
        {"num_clients": 2},
        {"y": np.arange(80.0) + 1},
        {"smiles": [*many()[:-1], "CCO"]},
        {"normalize_labels": True},
        {"client_holdout": 0.2},
    ]
    prints = [ready(TableDataModule(**{**base, **change})).fingerprint() for change in changes]
    assert len({first, *prints}) == len(changes) + 1


def test_split_seed_alone_keeps_the_split():
    one, two = (ready(TableDataModule(many(), np.arange(80.0), seed=seed, split_seed=7)) for seed in (0, 1))
    assert (one.division.server["test"] == two.division.server["test"]).all()
    assert one.partition_record()["membership"] != two.partition_record()["membership"]


def test_label_statistics_come_from_the_training_part_only():
    y = np.stack([np.arange(80.0), np.full(80, 3.0), np.full(80, np.nan)], axis=1)
    y[::2, 0] = np.nan
    data = ready(TableDataModule(many(), y, normalize_labels=True, client_holdout=0.3))
    trained = np.concatenate([c.packed.sample_id[c.part("train").positions] for c in data.client_datamodules()])
    known = y[trained, 0][~np.isnan(y[trained, 0])]
    assert data.schema["label_mean"] == pytest.approx([known.mean(), 3.0, 0.0])
    assert data.schema["label_std"] == pytest.approx([known.std(), 1.0, 1.0])  # no spread, no label: 1
    assert data.client_datamodules()[0].schema == data.schema
    for loaders in (data, *data.client_datamodules()):  # labels stay in units
        for batch in loaders.predict_dataloader():
            torch.testing.assert_close(batch.y, torch.tensor(y[batch.sample_id]).float(), equal_nan=True)
    assert "label_mean" not in ready(TableDataModule(many(), y)).schema
    with pytest.raises(ValueError, match="normalize_labels` is for regression"):
        TableDataModule(many(), np.zeros(80), task="classification", normalize_labels=True).setup()


def test_the_schema_says_what_labels_and_features_mean(cache):
    """Sites agree by the schema: equal numbers of tasks or features are no agreement."""
    data = ready(ChEMBLDataModule(cache_dir=cache))
    schema = data.schema
    assert schema["task_names"] == ["activity"] and schema["units"] == ["log10(1/M)"]
    assert schema["featuriser"] == "DGL-LifeSci canonical"
    assert data.client_datamodules()[0].schema == schema and json.loads(json.dumps(schema)) == schema


def test_setup_is_idempotent_and_required(cache):
    data = ChEMBLDataModule(cache_dir=cache)
    with pytest.raises(ValueError, match="no data yet: call `setup"):
        data.train_dataloader()
    data.setup()
    molecules = data.molecules
    data.setup("fit")
    assert data.molecules is molecules


@pytest.mark.parametrize(
    "options, error",
    [
        ({"num_clients": 0}, "num_clients` must be a whole number"),
        ({"partition": "metis"}, "partition` must be one of scaffold_lda"),
        ({"alpha": 0.0}, "alpha` must be a positive"),
        ({"batch_size": 0}, "batch_size` must be a whole number"),
        ({"client_holdout": 1.0}, "client_holdout` must be"),
        ({"split": "public"}, "split` must be one of random"),
        ({"partition": "column"}, "belong together"),
        ({"client_column": "x"}, "belong together"),
        ({"partition": "column", "client_column": "x"}, "'x', but the table has no such column"),
        ({"invalid": "skip"}, "invalid` must be one of"),
        ({"acyclic": "x"}, "acyclic` must be one of group, spread"),
        ({"num_clients": 65}, "is 65, but there are only 64 training"),
        ({"min_client_size": 30}, "cannot give each of 4 clients 30"),
        ({"partition": "label", "label_task": 1}, "label_task` is 1, but the tasks are 0 to 0"),
        ({"fractions": (0.5, 0.1, 0.1)}, "three shares that sum to 1"),
        ({"min_client_size": -5}, "min_client_size` must be a whole number of at least 0, or null, got -5"),
        ({"featurise_workers": -1}, "featurise_workers` must be a whole number"),
    ],
)
def test_values_that_cannot_work(options, error):
    with pytest.raises(ValueError, match=error):
        TableDataModule(many(), np.arange(80.0), **options).setup()


@pytest.mark.parametrize("clients", [1, 2, 5, 17, 50])
def test_any_number_of_clients(clients):
    data = ready(TableDataModule(many(), np.arange(80.0), num_clients=clients))
    assert sum(data.report()["client_sizes"]) == 64 and len(data.client_datamodules()) == clients


# Findings


def test_findings_of_awkward_rows():
    smiles = many(60) + ["[Na+].[Cl-]", "*CC", "C", "bad", "", *["CCCCC"] * 15]
    y = np.stack([np.arange(80) % 2.0, np.full(80, np.nan)], axis=1)
    data = ready(TableDataModule(smiles, y, task="classification", num_clients=2, partition="iid"))
    found = kinds(data)
    assert found["invalid_rows", None] == 2 and found["multi_fragment", None] == 1
    assert found["no_bonds", None] == 2 and found["unknown_atoms", None] == 1
    assert found["missing_labels", None] == 78 and found["missing_task", 0] == found["missing_task", 1] == 1
    assert found["undefined_test_metric", None] == 1 and found["undefined_val_metric", None] == 1
    assert found["small_client", 0] == 31
    assert data.report()["dropped_rows"] == [
        {"row": 63, "reason": "invalid SMILES: syntax error", "smiles": "bad"},
        {"row": 64, "reason": "empty SMILES", "smiles": ""},
    ]
    assert all(f["message"] and f["remedy"] for f in data.report()["findings"])


def test_a_molecule_without_a_label_is_in_no_training_part():
    """It would count in the average, and its steps would be weight decay alone."""
    y = np.arange(80.0).reshape(80, 1)
    y[60:] = np.nan  # all of site c, and some of b
    options = {"partition": "column", "client_column": "site", "fractions": (1.0, 0.0, 0.0)}
    sites = {"site": ["a"] * 30 + ["b"] * 40 + ["c"] * 10}
    data = ready(TableDataModule(many(), y, columns=sites, **options))
    clients = data.client_datamodules()
    assert [client.num_train_samples for client in clients] == [30, 30, 0] and data.num_train_samples == 60
    assert clients[2].train_dataloader() == [] and len(clients[2].part("predict")) == 10
    report = data.report()
    assert report["client_sizes"] == [30, 40, 10] and report["client_samples"]["train"] == [30, 30, 0]
    assert ("empty", 2) in kinds(data) and data.partition_record()["unassigned"] == []


def test_labels_whose_squares_overflow_are_refused():
    y = np.arange(80.0)
    y[7] = 1e30
    with pytest.raises(ValueError, match=r"row 7 has label 1e\+30 for task `t0`, whose square .*1 such labels"):
        ready(TableDataModule(many(), y))


def test_what_an_option_has_settled_is_no_finding():
    smiles = ["C" * (i + 1) for i in range(20)] + many(19) + ["CC1CC1.[Na+].[Cl-]"]
    first, settled = (
        ready(TableDataModule(smiles, np.arange(40.0), num_clients=2, **options))
        for options in ({}, {"acyclic": "spread", "fragments": "largest"})
    )
    assert {("large_scaffold_group", None), ("multi_fragment", None)} <= set(kinds(first))
    assert not {("large_scaffold_group", None), ("multi_fragment", None)} & set(kinds(settled))


def test_a_scaffold_split_that_misses_its_sizes_is_told():
    smiles = ["C" * (i + 1) for i in range(85)] + many(20)  # 85 of 105 are one group, too many for the training part
    lumped = ready(TableDataModule(smiles, np.arange(105.0), num_clients=2, split="scaffold"))
    assert lumped.report()["samples"] == {"train": 20, "val": 0, "test": 85} and kinds(lumped)["split_sizes", None] == 74
    spread = ready(TableDataModule(smiles, np.arange(105.0), num_clients=2, split="scaffold", acyclic="spread"))
    assert ("split_sizes", None) not in kinds(spread)


@pytest.mark.parametrize("partition", ["scaffold_lda", "label"])
def test_every_client_gets_at_least_64_molecules_or_half_a_fair_share(cache, partition):
    options = {"cache_dir": cache, "alpha": 0.05, "partition": partition}
    for clients, least in ((4, 64), (10, 40)):
        assert min(ready(ChEMBLDataModule(num_clients=clients, **options)).report()["client_sizes"]) >= least
    alone = [
        min(ready(ChEMBLDataModule(num_clients=10, min_client_size=1, seed=seed, **options)).report()["client_sizes"])
        for seed in range(3)
    ]
    assert partition == "scaffold_lda" or min(alone) < 40  # so it is the default that sees to it


def test_one_class_parts_are_told():
    y = np.zeros(80)
    y[:3] = 1
    data = ready(TableDataModule(many(), y, task="classification", num_clients=4, partition="iid", client_holdout=0.5))
    found = kinds(data)
    for client, part in enumerate(data.client_datamodules()):
        values = set(part.packed.y[part.part("test").positions, 0].tolist())
        assert (("undefined_test_metric", client) in found) == (len(values) == 1)


def test_scaffold_skew_and_the_acyclic_group(cache):
    skewed = ready(ChEMBLDataModule(cache_dir=cache, alpha=0.1))
    report = skewed.report()
    assert all(value > report["scaffold_tv_iid"] + 0.1 for value in report["scaffold_tv"])
    assert {("scaffold_skew", client) for client in range(4)} <= set(kinds(skewed))
    iid = ready(ChEMBLDataModule(cache_dir=cache, partition="iid"))
    assert not any(kind == "scaffold_skew" for kind, _ in kinds(iid))
    acyclic = ready(TableDataModule(["C" * (i + 1) for i in range(20)] + many(20), np.arange(40.0), num_clients=2))
    assert kinds(acyclic)["large_scaffold_group", None] == 20 == acyclic.report()["acyclic_molecules"]
    spread = ready(
        TableDataModule(["C" * (i + 1) for i in range(20)] + many(20), np.arange(40.0), num_clients=2, acyclic="spread")
    )
    assert spread.report()["num_scaffolds"] == acyclic.report()["num_scaffolds"] + 19


def test_yaml_sees_every_option():
    from jsonargparse import ArgumentParser

    parser = ArgumentParser()
    parser.add_subclass_arguments(MoleculeDataModule, "data")
    config = parser.parse_args(
        [
            "--data=datamodules.molecules.MoleculeNetDataModule",
            "--data.name=FreeSolv",
            "--data.num_clients=5",
            "--data.alpha=0.5",
            "--data.partition=official",
            "--data.root=x",
        ]
    )
    data = parser.instantiate_classes(config).data
    assert (data.name, data.num_clients, data.alpha, data.partition, data.root) == ("freesolv", 5, 0.5, "official", "x")
    with pytest.raises(SystemExit):
        parser.parse_args(["--data=datamodules.molecules.MoleculeNetDataModule", "--data.num_client=5"])
