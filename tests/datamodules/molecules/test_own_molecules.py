"""One's own molecules: hand-made files with known answers, the awkward real files, SDF with positions."""

import gzip
import shutil

import pytest
import torch
from graph_fixtures import real_data
from rdkit import Chem

from datamodules import MoleculeCSVDataModule
from datamodules.molecules.sdf import block_values

SITE_A = "code;smiles;logS [mol/L];note\nA1;CCO;-0,5;x\nA2;c1ccccc1;-1,5;\nA3;C1CC;2,5;bad\nA4;CC(=O)O;;none\nA5;CCN;>3;\n"
SITE_B = "smiles,code,tox,logS [mol/L]\nCCO,B1,1,-0.7\nCCCl,B2,0,-2\nC[N+](C)C.[Cl-],B3,0.5,-3\n"
ALL = {"fractions": (1.0, 0.0, 0.0), "cache_dir": None, "featurise_workers": 0, "id_column": "code"}


@pytest.fixture
def sites(tmp_path):
    (tmp_path / "a.csv").write_text(SITE_A)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(SITE_B.encode("utf-8-sig")))
    return tmp_path


def ready(**options):
    data = MoleculeCSVDataModule(**options)
    data.setup()
    return data


def test_a_file_per_client_by_hand(sites):
    data = ready(files=str(sites), **ALL)
    assert data.task_names == ["logS [mol/L]", "tox"] and data.units == ["mol/L", ""]
    assert data.schema["task"] == "regression" and data.schema["metric"] == "rmse" and data.schema["num_tasks"] == 2
    nan = float("nan")
    wanted = {"A1": (-0.5, nan), "A2": (-1.5, nan), "A4": (nan, nan), "B1": (-0.7, 1), "B2": (-2, 0), "B3": (-3, 0.5)}
    rows = data.molecules.packed.sample_id.tolist()
    assert [data.original_ids[row] for row in rows] == list(wanted)
    torch.testing.assert_close(data.molecules.packed.y, torch.tensor(list(wanted.values())), equal_nan=True)
    assert [(d["row"], d["id"], d["file_row"], d["reason"]) for d in data.dropped_rows] == [
        (2, "A3", 2, "invalid SMILES: syntax error"), (4, "A5", 4, "`logS [mol/L]`: '>3' is not a number")]  # fmt: skip
    assert all(d["file"].endswith("a.csv") for d in data.dropped_rows)
    report = data.report()
    assert report["client_names"] == ["a", "b"] and report["client_sizes"] == [3, 3] and report["partition"] == "file"
    kinds = {(f["kind"], f["client"]): f["count"] for f in report["findings"]}
    assert kinds[("invalid_rows", None)] == 2 and kinds[("unlabelled_rows", None)] == 1 and kinds[("missing_task", 0)] == 1
    assert kinds[("multi_fragment", None)] == 1 and kinds[("duplicates_across_clients", None)] == 1
    assert any("`,` is taken for the decimal mark of `logS" in n for n in data.notices)
    assert any("unit of `logS [mol/L]`: mol/L" in n for n in data.notices)
    assert any("all other columns of numbers" in n for n in data.notices)


def test_words_that_are_taken_for_blank_labels_are_told(tmp_path):
    (tmp_path / "m.csv").write_text("smiles,y\nC,1.5\nCC,NA\nCCC,\nCCCC,NA\nCCCCC,nan\nCCCCCC,null\n")
    data = ready(files=str(tmp_path / "m.csv"), num_clients=1, cache_dir=None, fractions=(1.0, 0.0, 0.0))
    told = [note.split("`: ")[1] for note in data.notices if "blank" in note]
    assert told == ["2 times 'NA' in column 'y' is taken for a blank.", "1 time 'null' in column 'y' is taken for a blank."]
    (found,) = [f for f in data.report()["findings"] if f["kind"] == "unlabelled_rows"]
    assert found["level"] == "remark" and [row["file_row"] for row in found["rows"]] == [1, 2, 3, 4, 5]
    assert found["message"].endswith("m.csv row 3 (id '3'); and 2 more (`inspect --json` and `--html` list all)).")


def test_one_decimal_point_among_commas_costs_its_own_row_alone(tmp_path):
    rows = "".join(f"{'C' * i};m{i};{f'{i},5' if i != 7 else '7.25'}\n" for i in range(1, 21))
    (tmp_path / "m.csv").write_text("smiles;code;y\n" + rows)
    (dropped,) = ready(files=str(tmp_path / "m.csv"), num_clients=1, **ALL).dropped_rows
    assert (dropped["id"], dropped["reason"]) == (
        "m7",
        "`y`: '7.25' is not a number with the decimal mark `,` (`data.init_args.decimal`)",
    )


def test_labels_in_kelvin_sentinels_and_constants_are_told_by_site_and_row(tmp_path):
    for site, zero in (("a", 0.0), ("b", 0.0), ("c", 273.15)):
        rows = "".join(
            f"{'C' * (1 + i)}O,{site}{i},{zero + i * 37 % 50 + 0.5},{7 if site == 'b' else i / 8}\n" for i in range(20)
        )
        (tmp_path / f"{site}.csv").write_text("smiles,code,mp,s\n" + rows.replace(",7.5,", ",-999,", site == "b"))
    found = ready(files=str(tmp_path), **ALL).report()["findings"]
    found = {(f["kind"], f["client"]): f for f in found}
    assert "labels of `mp` of client 'c'" in found["range_differs", 2]["message"] and ("range_differs", 0) not in found
    assert "labels of `s` of client 'b' are 7;" in found["constant_labels", 1]["message"]
    (row,) = found["sentinels", None]["rows"]
    assert row["id"] in found["sentinels", None]["message"] and row["file"].endswith("b.csv")


def test_repeated_ids_and_a_label_of_two_names_are_told_by_row(tmp_path):
    for site, label in (("a", "pAct"), ("b", "activity")):
        rows = "".join(f"{site if i < 9 else 'x'}{i % 8},{'C' * i}{'O' * (site == 'b')},{i / 4}\n" for i in range(1, 12))
        (tmp_path / f"{site}.csv").write_text(f"code,smiles,{label}\n" + rows)
    found = {f["kind"]: f for f in ready(files=str(tmp_path), **ALL).report()["findings"]}
    assert found["tasks_apart"]["message"].startswith("No row and no client has both `pAct` ('a') and `activity` ('b'): is")
    repeated = found["repeated_ids"]  # x1, x2, x3 at both
    assert repeated["count"] == 3 and repeated["message"].startswith("3 rows have an id that an earlier row has: ")
    assert [(row["id"], row["file_row"]) for row in repeated["rows"]] == [(f"x{i}", 7 + i) for i in (1, 2, 3) for _ in "ab"]
    named = ready(files=str(tmp_path), targets=["pAct", "activity"], **ALL).report()["findings"]
    assert "tasks_apart" not in {f["kind"] for f in named}


def test_a_column_of_clients_keeps_rows_with_their_labels(tmp_path):
    (tmp_path / "all.tsv").write_bytes(b"smiles\tsite\ty\rC\tnorth\t1\rCC\tsouth\t2\rCCC\t\t3\rCCCC\tnorth\t4\r")
    data = ready(files=str(tmp_path / "all.tsv"), client_column="site", targets=["y"], **{**ALL, "id_column": None})
    assert data.partition_record()["client_names"] == ["north", "south"] and data.partition_record()["method"] == "column"
    assert [c.packed.y.flatten().tolist() for c in data.client_datamodules()] == [[1, 4], [2]]
    assert [(d["row"], d["reason"], d["id"]) for d in data.dropped_rows] == [(2, "no client", "2")]
    with pytest.raises(ValueError, match=r"1 of 4 rows .*all.tsv row 2 \(id '2'\) 'CCC': no client"):
        ready(files=str(tmp_path / "all.tsv"), client_column="site", invalid="raise", cache_dir=None)


def test_one_file_for_a_partitioner(tmp_path):
    (tmp_path / "m.csv").write_text("smiles,y\n" + "".join(f"{'C' * i},{i}\n" for i in range(1, 41)))
    data = ready(files=str(tmp_path / "m.csv"), num_clients=3, partition="iid", cache_dir=None)
    assert data.report()["client_sizes"] == [11, 11, 10] and data.report()["partition"] == "iid"
    rows = data.molecules.packed.sample_id
    assert torch.equal(data.molecules.packed.y.flatten(), rows + 1.0)  # no label has moved
    assert torch.equal(data.molecules.packed.num_atoms, rows + 1)


def test_sites_that_name_a_task_in_two_ways_are_told(sites):
    (sites / "c.csv").write_text("smiles,code,TOX\nCC,1,1\n")
    with pytest.raises(ValueError, match="client 'c' calls a task 'TOX', which others call 'tox': rename"):
        ready(files=str(sites), **ALL)
    with pytest.raises(ValueError, match="client 'c' has no column 'tox' but 'TOX': rename it in .*c.csv"):
        ready(files=str(sites), targets=["tox"], **ALL)


def test_an_odd_label_is_named_by_file_row_and_id(tmp_path):
    rows = [f"n{i},{'C' * (i + 1)},{i % 2}" for i in range(30)]
    (tmp_path / "m.csv").write_text("\n".join(["code,smiles,active", *rows[:12], "n12,CCF,2", *rows[13:]]))
    options = {"num_clients": 1, "partition": "iid", **ALL}
    with pytest.raises(ValueError, match=r"29 of 30 labels are 0 or 1, but 1 are not: .*m.csv row 12 \(id 'n12'\) has 2 for"):
        ready(files=str(tmp_path / "m.csv"), **options)
    with pytest.raises(ValueError, match=r"m.csv row 12 \(id 'n12'\) has label 2 for task `active`; but the labels of a class"):
        ready(files=str(tmp_path / "m.csv"), task="classification", **options)
    assert ready(files=str(tmp_path / "m.csv"), task="regression", **options).task == "regression"
    (tmp_path / "m.csv").write_text("\n".join(["code,smiles,active", *rows[:12], "n12,CCF,x", "n,C1C,0.5", *rows[13:]]))
    data = ready(files=str(tmp_path / "m.csv"), **options)  # rows that cannot be used have no say
    assert data.task == "classification" and [d["id"] for d in data.dropped_rows] == ["n12", "n"]


def test_what_is_learnt_as_numbers_but_looks_like_classes_is_a_finding(tmp_path):
    (tmp_path / "m.csv").write_text("smiles,tox,logS\nC,0,0.5\nCC,1,-1.5\nCCC,0,2\n")
    options = {"files": str(tmp_path / "m.csv"), "num_clients": 1, "cache_dir": None, "fractions": (1.0, 0.0, 0.0)}
    assert "classes_as_numbers" in {f["kind"] for f in ready(**options).report()["findings"]}
    assert "classes_as_numbers" not in {f["kind"] for f in ready(task="regression", **options).report()["findings"]}


def test_counters_and_ids_are_not_learnt_unless_they_are_asked_for(tmp_path):
    rows = [f"{i + 1},{5000 + i * i % 97},{'C' * (i + 1)},{i % 2}" for i in range(20)]
    (tmp_path / "m.csv").write_text("num,PubChem CID,smiles,active\n" + "\n".join(rows))
    options = {"files": str(tmp_path / "m.csv"), "num_clients": 1, "cache_dir": None, "fractions": (1.0, 0.0, 0.0)}
    data = ready(**options)
    assert data.task_names == ["active"] and data.task == "classification"
    (found,) = [f for f in data.report()["findings"] if f["kind"] == "targets_left_out"]
    assert found["count"] == 2 and "`num` (is a running number by its name" in found["message"]
    assert "`PubChem CID` (is an id by its name)" in found["message"] and "`data.init_args.targets`" in found["remedy"]
    assert any("targets: `active`, all other columns of numbers; not `num` (is a" in note for note in data.notices)
    asked = ready(targets=["num", "active"], **options)
    assert asked.task_names == ["num", "active"] and asked.task == "regression"
    assert "targets_left_out" not in {f["kind"] for f in asked.report()["findings"]}
    (tmp_path / "m.csv").write_text("num,smiles,active\n" + "\n".join(f"{i},{'C' * i},yes" for i in range(1, 20)))
    with pytest.raises(
        ValueError,
        match=r"no column of numbers to learn: .*; not `num` \(is a running number by its name.*"
        "Name those of labels in `data.init_args.targets`",
    ):
        ready(**options)


def test_configuration_overrides_what_would_be_guessed(sites):
    data = ready(files=str(sites), targets=["logS [mol/L]"], metric="mae", units={"logS [mol/L]": "log M"}, decimal=",", **ALL)
    assert data.schema["metric"] == "mae" and data.units == ["log M"] and data.schema["num_tasks"] == 1
    assert {d["id"]: d["reason"] for d in data.dropped_rows}["B1"] == (
        "`logS [mol/L]`: '-0.7' is not a number with the decimal mark `,` (`data.init_args.decimal`)"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"smiles_column": "SMILES"},
            "`data.init_args.smiles_column` is 'SMILES', but .*a.csv` has no such column.*"
            "Write `data.init_args.smiles_column: smiles`",
        ),
        ({"id_column": "name"}, "`data.init_args.id_column` is 'name'"),
        ({"targets": ["y"]}, "`data.init_args.targets` names 'y', but no file has such a column.*The columns are: 'code'"),
        ({"targets": "LogS [mol/L]"}, r"no file has such a column: .*Write `logS \[mol/L\]`"),
        ({"targets": []}, "must name one or more"),
        ({"client_column": "site", "partition": "file"}, "leave out `data.init_args.client_column`"),
        ({"client_column": "site"}, "`data.init_args.client_column` is 'site'"),
        ({"task": "regression", "metric": "auroc"}, "for regression it must be one of: rmse, mae"),
        ({"task": "classification"}, "has label -0.5 for task `logS.*a column of 0 and 1 for each class"),
        ({"units": {"x": "m"}}, "`data.init_args.units` names 'x'"),
        ({"geometry": True}, "needs positions, which only SDF files"),
        ({"invalid": "raise"}, r"2 of 8 rows cannot be used: .*a.csv row 2 \(id 'A3'\) 'C1CC': invalid SMILES"),
    ],
)
def test_mistakes_are_told_in_the_users_names(sites, options, message):
    with pytest.raises(ValueError, match=message):
        ready(files=str(sites), **{**ALL, **options})


def test_missing_and_repeated_files(sites):
    with pytest.raises(ValueError, match="nowhere.csv` is no file"):
        ready(files=str(sites / "nowhere.csv"), cache_dir=None)
    with pytest.raises(ValueError, match="several files called"):
        ready(files=[str(sites / "a.csv")] * 2, cache_dir=None)
    (sites / "empty").mkdir()
    with pytest.raises(ValueError, match="has no file"):
        ready(files=str(sites / "empty"))


def test_a_site_without_a_usable_row_is_told(sites):
    (sites / "c.csv").write_text("smiles,code,tox\nnothing,1,1\n")
    report = ready(files=str(sites), **ALL).report()
    (found,) = [f for f in report["findings"] if f["kind"] == "client_without_molecules"]
    assert "'c'" in found["message"] and report["client_names"] == ["a", "b"]
    assert ready(files=str(sites), **ALL).lost_clients == ["c"]
    assert ready(files=str(sites), partition="iid", num_clients=2, **ALL).lost_clients == []


def quick_fit(data, encoder, tmp_path, rounds=1):
    from fl_lightning import FedAvg, FederatedTrainer
    from lit_models import LitMoleculePredictor

    fed = FederatedTrainer(num_rounds=rounds, strategy=FedAvg(), seed=0,
                           trainer={"accelerator": "cpu", "max_steps": 2, "logger": False,
                                    "default_root_dir": str(tmp_path)})  # fmt: skip
    return fed.fit(LitMoleculePredictor(encoder), data)


def test_sparse_multitask_example_is_reported_exactly_and_trains(tmp_path):
    from lit_models import GCNMolecule

    path = real_data("awkward", "molecules") + "/awkward/molecules/sparse_multitask_example.csv"
    data = ready(files=path, cache_dir=None, featurise_workers=0)
    report = data.report()
    kinds = {f["kind"]: f["count"] for f in report["findings"]}
    assert report["num_molecules"] == 600 and report["dropped_rows"] == [] and report["num_tasks"] == 9
    assert kinds["missing_labels"] == 4708 and data.molecules.packed.y.numel() == 5400 and kinds["unlabelled_rows"] == 448
    assert kinds["multi_fragment"] == 70 and kinds["no_bonds"] == 3
    assert len(data.molecules) - len(set(data.molecules.canonical)) == 1
    assert report["task"] == "classification"
    results = quick_fit(data, GCNMolecule(hidden_channels=8, num_layers=1), tmp_path)
    assert results["failures"] == [] and results["val"]["global"] is not None


def test_invalid_smiles_dataset_is_reported_exactly_and_trains(tmp_path):
    from lit_models import GCNMolecule

    path = real_data("awkward", "molecules") + "/awkward/molecules/invalid_smiles_dataset.csv"
    data = ready(files=path, smiles_column="Standardized_Smiles", targets=["Mol Weight"], id_column="Unnamed: 0", num_clients=1,
                 cache_dir=None, fractions=(0.5, 0.25, 0.25))  # fmt: skip
    report = data.report()
    assert [d["row"] for d in report["dropped_rows"]] == [0, 1] and report["num_molecules"] == 4
    assert data.molecules.packed.y.flatten().tolist() == pytest.approx([103.121, 117.148, 165.192, 165.192])
    assert {f["kind"]: f["count"] for f in report["findings"]}["repeated_ids"] == 1
    assert quick_fit(data, GCNMolecule(hidden_channels=8, num_layers=1), tmp_path)["failures"] == []


def record(name, atoms, tags):
    lines = [name, "", "", f"{len(atoms):3d}  0  0  0  0  0  0  0  0  0999 V2000"]
    lines += [f"{x:10.4f}{y:10.4f}{z:10.4f} {symbol:<3} 0  0" for symbol, (x, y, z) in atoms]
    lines += ["M  END", *(f"> <{key}>\n{value}\n" for key, value in tags.items()), "$$$$", ""]
    return "\n".join(lines)


def test_sdf_with_positions_for_schnet(tmp_path):
    from lit_models import SchNet

    atoms = [("O", (0.0, 0.0, 0.1)), ("H", (0.9, 0.1, 0.0)), ("H", (-0.9, 0.0, 0.2)), ("F", (0, 0, 5.0))]
    text = "".join(record(f"m{i}", atoms[: 2 + i % 3], {"gap": i / 2, "odd": "x"} if i != 3 else {}) for i in range(12))
    (tmp_path / "m.sdf").write_text(text + "junk\n$$$$\n")
    data = ready(files=str(tmp_path / "m.sdf"), geometry=True, num_clients=2, partition="iid", cache_dir=None)
    assert data.task_names == ["gap"] and data.original_ids == [*(f"m{i}" for i in range(12)), "junk"]
    assert [(d["row"], d["id"]) for d in data.dropped_rows] == [(12, "junk")]
    assert data.molecules.packed.y[4].item() == 2 and bool(data.molecules.packed.y[3].isnan())
    batch = next(iter(data.predict_dataloader()))
    torch.testing.assert_close(batch.pos[:2], torch.tensor([[0, 0, 0.1], [0.9, 0.1, 0]]))
    assert batch.z[:2].tolist() == [8, 1] and "edge_index" not in batch
    assert quick_fit(data, SchNet(hidden_channels=8, num_filters=8, num_interactions=1), tmp_path)["failures"] == []
    flat = "".join(record(f"m{i}", [(s, (x, y, 0)) for s, (x, y, _) in atoms], {"gap": i}) for i in range(4))
    (tmp_path / "flat.sdf").write_text(flat)
    data = ready(files=str(tmp_path / "flat.sdf"), geometry=True, num_clients=1, cache_dir=None, fractions=(1.0, 0, 0))
    assert {f["kind"]: f["count"] for f in data.report()["findings"]}["flat_geometry"] == 4
    with pytest.raises(ValueError, match="`data.init_args.fragments: largest` is for bonds"):
        ready(files=str(tmp_path / "flat.sdf"), geometry=True, fragments="largest")


def test_a_record_that_cannot_be_read_keeps_its_id_and_its_reason(tmp_path):
    """With bonds as with positions; RDKit takes two molecules without a line between them for the first one."""
    good = [record(f"m{i}", [("O", (0.0, 0.0, 0.1))], {"code": f"A{i}", "y": i / 2}) for i in range(5)]
    good[2] = good[2].replace(" O   0", " Xx  0")
    good[3] = good[3].replace("$$$$\n", "") + good[3].replace("m3", "m9")
    (tmp_path / "m.sdf").write_text("".join(good) + record("m5", [("O", (0, 0, 0))], {"code": "A5", "y": 1.25})[:-8])
    for geometry in (False, True):
        data = ready(files=str(tmp_path / "m.sdf"), geometry=geometry, num_clients=1, **ALL)
        assert [(d["row"], d["id"], d["reason"]) for d in data.dropped_rows] == [
            (2, "A2", "no molecule with coordinates in this record"),
            (3, "A3", "2 molecules in one record: a `$$$$` line between them is missing"),
            (5, "A5", "the file ends within this record, which has no `$$$$` line: is it complete?"),
        ]
        assert data.molecules.packed.y.flatten().tolist() == [0, 0.5, 2] and data.num_rows_read == 6


@pytest.mark.parametrize(
    "tags",
    [
        ">  <y>  (3)\n1\n\n> <a b>\n x \n\n",
        "> <y>\n1\n2\n\n> <z>\n3\n\n",
        "> 25 <w> \n5\n\n> <q>\n\n> <r>\n8\n\n",
        "> <y>\n> <z>\n1\n\n",
        "> <y>\n1\n\n> <y>\n2\n\n",
        "> <a>b>\n2\n\n",
        "> DT12\n2\n\n",
        "> <y>\n1\n   \n2\n\n",
        "><y>\n1\n\n",
        "",
    ],
)
def test_tags_are_read_as_rdkit_reads_them(tags):
    block = record("m", [("O", (0.0, 0.0, 0.1))], {}).removesuffix("$$$$\n") + tags
    supplier = Chem.SDMolSupplier()
    supplier.SetData(block + "$$$$\n", sanitize=False)
    theirs = {name: supplier[0].GetProp(name).strip() for name in supplier[0].GetPropNames()}
    assert block_values(block) == {"name": "m", **theirs}


def test_a_last_value_ends_where_its_record_ends():
    """RDKit has `1.5\\n$$$$` where no empty line follows."""
    assert block_values("m\n\n\nM  END\n> <y>\n1.5\n") == {"name": "m", "y": "1.5"}


def test_sdf_with_bonds_is_the_same_as_its_smiles(tmp_path):
    smiles = ["CCO", "c1ccncc1", "CC(=O)[O-].[Na+]"]
    with Chem.SDWriter(str(tmp_path / "m.sdf")) as writer:
        for place, text in enumerate(smiles):
            mol = Chem.MolFromSmiles(text)
            mol.SetProp("_Name", f"id {place}")
            mol.SetProp("y", str(place))
            writer.write(mol)
    (tmp_path / "m.csv").write_text("smiles,y\n" + "".join(f"{text},{place}\n" for place, text in enumerate(smiles)))
    options = {"num_clients": 1, "cache_dir": None, "fractions": (1.0, 0.0, 0.0)}
    sdf, table = (ready(files=str(tmp_path / name), **options) for name in ("m.sdf", "m.csv"))
    assert sdf.molecules.canonical == table.molecules.canonical and sdf.original_ids == ["id 0", "id 1", "id 2"]
    assert torch.equal(sdf.molecules.packed.y, table.molecules.packed.y)
    assert torch.equal(sdf.molecules.packed.nodes["atom"], table.molecules.packed.nodes["atom"])


def test_parquet_reads_as_csv(sites, tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    shutil.rmtree(tmp_path / "p", ignore_errors=True)
    (tmp_path / "p").mkdir()
    parquet.write_table(pa.table({"smiles": ["CCO", None, "C"], "y": [0.1, 2.0, None]}), tmp_path / "p" / "m.parquet")
    data = ready(files=str(tmp_path / "p"), num_clients=1, partition="iid", cache_dir=None, fractions=(1.0, 0.0, 0.0))
    torch.testing.assert_close(data.molecules.packed.y.flatten(), torch.tensor([0.1, float("nan")]), equal_nan=True)
    assert [(d["row"], d["reason"]) for d in data.dropped_rows] == [(1, "empty SMILES")]


def test_labels_in_words_are_told_not_taken_for_bad_molecules(tmp_path):
    (tmp_path / "m.csv").write_text("smiles,active\nCCO,yes\nCCC,no\n")
    with pytest.raises(ValueError, match="none of 2 rows can be used: .*'yes' is not a number.*SMILES and labels right"):
        ready(files=str(tmp_path / "m.csv"), targets=["active"], cache_dir=None)
    (tmp_path / "m.csv").write_text("smiles,active\nCCO,true\nCCC,False\nC,TRUE\n")
    data = ready(files=str(tmp_path / "m.csv"), targets=["active"], cache_dir=None, num_clients=1, fractions=(1.0, 0.0, 0.0))
    assert data.schema["task"] == "classification" and data.molecules.packed.y.flatten().tolist() == [1, 0, 1]


def test_files_without_a_row_are_told(tmp_path):
    (tmp_path / "a.csv").write_text("smiles,y\n")
    for options in ({}, {"targets": "y"}):
        with pytest.raises(ValueError, match="a.csv': no row below the first line"):
            ready(files=str(tmp_path / "a.csv"), cache_dir=None, **options)
    (tmp_path / "b.csv").write_text("smiles,y\n" + "".join(f"{'C' * i},{i}\n" for i in range(1, 11)))
    with pytest.raises(ValueError, match="a.csv': no row below the first line"):
        ready(files=str(tmp_path / "b.csv"), predict_files=str(tmp_path / "a.csv"), num_clients=1, cache_dir=None)
    found = ready(files=[str(tmp_path / "a.csv"), str(tmp_path / "b.csv")], cache_dir=None).report()["findings"]
    assert any(f["kind"] == "client_without_molecules" and "'a' has no usable row" in f["message"] for f in found)


def test_molecules_without_any_label_are_told_where_they_belong(tmp_path):
    (tmp_path / "m.csv").write_text("smiles,y\nC,\nCC,\nC1CC,1\nCCO,> 3\n")  # a label of no molecule, and no number
    with pytest.raises(ValueError, match="None of 2 molecules has a label: 'y'.*predict_files`"):
        ready(files=str(tmp_path / "m.csv"), targets="y", cache_dir=None)


def test_files_of_a_folder_that_are_not_read_are_named(tmp_path):
    (tmp_path / "s").mkdir()
    for name in ("north.csv", "south.xlsx", ".hidden"):
        (tmp_path / "s" / name).write_text("smiles,y\n" + "".join(f"{'C' * i},{i}\n" for i in range(1, 11)))
    notices = ready(files=str(tmp_path / "s"), num_clients=1, cache_dir=None).notices
    assert [note for note in notices if "not read" in note] == [f"not read, by their names: '{tmp_path / 's' / 'south.xlsx'}'."]
    with pytest.raises(ValueError, match=r"has no file \*.csv, .* It has folders: `files: \[.*/s\]`"):
        ready(files=str(tmp_path), cache_dir=None)


def test_what_programs_leave_in_a_folder_is_no_site(tmp_path):
    (tmp_path / "north.csv").write_text("smiles,y\n" + "".join(f"{'C' * i},{i}\n" for i in range(1, 11)))
    for name in ("~$north.csv", "._north.csv", ".~lock.north.csv#", "north.csv.bak", "Thumbs.db", ".DS_Store"):
        (tmp_path / name).write_text("junk")
    data = ready(files=str(tmp_path), num_clients=1, cache_dir=None)
    (told,) = [note for note in data.notices if "not read" in note]
    assert len(data.original_ids) == 10 and all(name in told for name in ("~$north.csv", "._north.csv", "bak", "Thumbs.db"))
    assert ".DS_Store" not in told and "lock" not in told


def test_a_row_of_another_length_keeps_its_id_and_a_site_of_words_is_told(tmp_path):
    for site, labels in (("a", "01"), ("A", "01"), ("b", ("inactive", "active"))):
        rows = "".join(f"{'C' * (1 + i)}O,{site}{i},{labels[i % 2]}\n" for i in range(8))
        (tmp_path / f"{site}{'2' * (site == 'A')}.csv").write_text(f"smiles,code,toxic\n{rows}{'C,torn' + site}\n")
    data = ready(files=str(tmp_path), **ALL)
    assert [d["id"] for d in data.dropped_rows if "fields" in d["reason"]] == ["tornA", "torna", "tornb"]
    assert data.original_ids[8] == "tornA"
    (found,) = [f for f in data.report()["findings"] if f["kind"] == "classes_apart"]
    assert (
        found["client"] is None
        and found["count"] == 8
        and found["message"]
        == (
            "Not one of 8 labels of `toxic` of client 'b' can be read as those of the others are: 'inactive' is not a number; "
            "'active' is not a number."
        )
    )
    table = "smiles,code,toxic,site\n" + "".join(
        f"{'C' * (1 + i)}O,{i},{i % 2},{('East', 'east ')[i % 3 > 0]}\n" for i in range(12)
    )
    (tmp_path / "a.csv").write_text(table)
    kinds = [f["kind"] for f in ready(files=str(tmp_path / "a.csv"), client_column="site", **ALL).report()["findings"]]
    assert "clients_alike" in kinds and "classes_apart" not in kinds


def test_a_table_without_a_header(tmp_path):
    (tmp_path / "m.smi").write_text("".join(f"{'C' * i} m{i} {i}\n" for i in range(1, 11)))
    with pytest.raises(ValueError, match="Its columns are: 'C', 'm1', '1' .*`data.init_args.header: false`"):
        ready(files=str(tmp_path / "m.smi"), cache_dir=None)
    data = ready(files=str(tmp_path / "m.smi"), header=False, smiles_column="0", id_column="1", targets="2", num_clients=1,
                 cache_dir=None)  # fmt: skip
    assert data.original_ids == [f"m{i}" for i in range(1, 11)]
    assert data.molecules.packed.y.flatten().tolist() == [*range(1, 11)]


def test_what_looks_like_classes_is_told_how_to_be_some(tmp_path):
    (tmp_path / "m.csv").write_text("smiles,grade\nC,0\nCC,1\nCCC,2\nCCCC,1\n")
    notices = ready(files=str(tmp_path / "m.csv"), num_clients=1, cache_dir=None, fractions=(1.0, 0, 0)).notices
    assert any("if those of `grade` are classes, write a column of 0 and 1 for each class" in note for note in notices)
    (tmp_path / "m.csv").write_text("smiles,grade\nC,low\nCC,high\n")
    with pytest.raises(ValueError, match="its columns are 'smiles', 'grade'.*classes are 0 and 1"):
        ready(files=str(tmp_path / "m.csv"), cache_dir=None)


def test_a_client_may_be_called_na_and_without_a_name_there_is_none(tmp_path):
    rows = "".join(f"{'C' * i},{('EU', 'NA', '')[i % 3]},{i}\n" for i in range(1, 10))
    (tmp_path / "m.csv").write_text("smiles,region,y\n" + rows)
    data = ready(files=str(tmp_path / "m.csv"), client_column="region", cache_dir=None)
    assert {d["reason"] for d in data.dropped_rows} == {"no client"}
    assert data.row_clients == ["NA", "", "EU"] * 3 and data.partition_record()["client_names"] == ["EU", "NA"]
