"""Molecules that occur more than once: where, which rows, and what to do about them."""

import numpy as np
from molecule_fixtures import TableDataModule, kinds, many, ready


def test_duplicates_and_leakage_by_canonical_smiles():
    smiles = many(20) * 2 + ["C" + text for text in many(20)] * 2
    smiles[20] = "C2CC2"  # another writing of row 0
    data = ready(TableDataModule(smiles, np.arange(80.0), num_clients=2, partition="iid"))
    name = data.molecules.canonical
    assert name[0] == name[20] == "C1CC1"
    record = data.partition_record()
    held = [[name[row] for row in rows] for rows in record["membership"]]
    server = {part: [name[row] for row in rows] for part, rows in record["server"].items()}
    found = kinds(data)
    assert found["duplicates_across_clients", None] == len(set(held[0]) & set(held[1]))
    assert found["duplicates_in_client", 1] == len(held[1]) - len(set(held[1]))
    assert found["train_test_leakage", None] == sum(molecule in server["train"] for molecule in server["test"])
    clean = ready(TableDataModule(many(), np.arange(80.0), num_clients=2))
    assert not any("leakage" in kind or "duplicates" in kind for kind, _ in kinds(clean))


def test_what_repeats_is_named_with_all_its_rows():
    """Five molecules, each twice at each of two clients; labels agree."""
    smiles, sites = many(5) * 4, ["a"] * 10 + ["b"] * 10
    data = ready(
        TableDataModule(
            smiles,
            np.tile(np.arange(5.0), 4),
            partition="column",
            client_column="site",
            fractions=(1.0, 0.0, 0.0),
            columns={"site": sites},
        )
    )
    found = {(f["kind"], f["client"]): f for f in data.report()["findings"]}
    shared = found["duplicates_across_clients", None]
    assert shared["level"] == "remark" and sorted(row["row"] for row in shared["rows"]) == list(range(20))
    assert shared["message"].startswith("5 molecules are held by more than one client: C1CC1 (row 0, row 5, row 10, ...); ")
    assert shared["message"].endswith("; and 2 more (`inspect --json` and `--html` list all).")
    assert [row["row"] for row in found["duplicates_in_client", 1]["rows"]] == [10, 15, 11, 16, 12, 17, 13, 18, 14, 19]
    assert found["duplicates_in_client", 1]["rows"][1]["molecule"] == "C1CC1"


def test_rows_that_are_learnt_and_scored_are_named_with_their_part():
    smiles = many(40)
    parts = ready(TableDataModule(smiles, np.arange(40.0), num_clients=2)).partition_record()["server"]
    learnt, scored = parts["train"][0], parts["test"][0]
    smiles[scored] = smiles[learnt]
    (found,) = [
        f
        for f in ready(TableDataModule(smiles, np.arange(40.0), num_clients=2)).report()["findings"]
        if f["kind"] == "train_test_leakage"
    ]
    assert {(row["row"], row["part"]) for row in found["rows"]} == {(learnt, "train"), (scored, "test")}
    assert found["message"].startswith(f"1 of {len(parts['test'])} test molecules is also in the training part: ")
    assert found["remedy"] == "Remove the repeated rows, or use `data.init_args.split: scaffold`."


def test_no_scaffolds_are_advised_where_most_molecules_have_none():
    smiles = [f"{'C' * (i + 1)}O" for i in range(40)]
    parts = ready(TableDataModule(smiles, np.arange(40.0), num_clients=2)).partition_record()["server"]
    smiles[parts["test"][0]] = smiles[parts["train"][0]]
    found = ready(TableDataModule(smiles, np.arange(40.0), num_clients=2)).report()["findings"]
    assert [f["remedy"] for f in found if f["kind"] == "train_test_leakage"] == ["Remove the repeated rows."]


def test_a_clients_own_test_molecules_that_any_client_trains_on_are_told():
    smiles = many(20) * 2  # all of them twice, once at each client
    data = ready(
        TableDataModule(
            smiles,
            np.arange(40.0),
            partition="column",
            client_column="site",
            client_holdout=0.5,
            fractions=(1.0, 0.0, 0.0),
            columns={"site": ["a"] * 20 + ["b"] * 20},
        )
    )
    name, found = np.array(data.molecules.canonical), kinds(data)
    learnt = set(np.concatenate([name[parts["train"]] for parts in data.division.clients]))
    for client, parts in enumerate(data.division.clients):
        for stage in ("val", "test"):
            leaked = sum(text in learnt for text in name[parts[stage]])
            assert 0 < leaked < 5 + (stage == "test") and found[f"train_{stage}_leakage", client] == leaked
    assert ("train_test_leakage", None) not in found  # the server has no test molecules


def test_a_test_molecule_that_also_chooses_the_round_is_told():
    smiles = many(40)
    parts = ready(TableDataModule(smiles, np.arange(40.0), num_clients=2)).partition_record()["server"]
    smiles[parts["test"][0]] = smiles[parts["val"][0]]
    assert kinds(ready(TableDataModule(smiles, np.arange(40.0), num_clients=2)))["val_test_leakage", None] == 1


def test_isomers_with_the_same_features_are_told():
    """Chirality is no feature: R and S are one input with two labels. E and Z are told apart."""
    smiles = many(40)
    parts = ready(TableDataModule(smiles, np.arange(40.0), num_clients=2)).partition_record()["server"]
    (train, train_2), (test, test_2, test_3), val = parts["train"][:2], parts["test"][:3], parts["val"][0]
    smiles[train], smiles[test], smiles[val] = "C[C@H](N)C(=O)O", "C[C@@H](N)C(=O)O", "CC(N)C(=O)O"
    smiles[train_2], smiles[test_2], smiles[test_3] = "C/C=C/C", "C/C=C\\C", "C/C=C/C"
    found = kinds(ready(TableDataModule(smiles, np.arange(40.0), num_clients=2)))
    assert (found["train_test_stereoisomers", None], found["train_val_stereoisomers", None]) == (1, 1)
    assert found["train_test_leakage", None] == 1  # E-butene itself
