"""ECFP counts by hand and by RDKit, in batches, caches and the data's hash."""

import numpy as np
import pytest
import torch
from forest_samples import Chains
from rdkit import Chem
from rdkit.Chem import rdFingerprintGenerator

from datamodules.molecules import ChEMBLDataModule, MoleculeCSVDataModule
from datamodules.molecules.fingerprints import LARGEST, count_chunk, ecfp_counts

SMILES = ["CCO", "c1ccccc1O", "[K+].[I-]", "C", "CC(C)(C)c1ccc2ncccc2c1", "C/C=C/C"]


def test_counts_are_the_neighbourhoods_of_the_atoms():
    # Methane: one atom, one neighbourhood. Ethane: two equal atoms, and one bond's neighbourhood, once. Radius 0: atoms.
    methane, ethane = ecfp_counts(["C", "CC"], 2, 2048)
    assert methane[methane > 0].tolist() == [1] and sorted(ethane[ethane > 0].tolist()) == [1, 2]
    assert ecfp_counts(["c1ccccc1"], 0, 64).sum() == 6


@pytest.mark.parametrize("radius", [1, 2])
def test_the_same_as_rdkits_by_another_way(radius):
    found = ecfp_counts(SMILES, radius, 128)
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=radius, fpSize=128)
    for text, counts in zip(SMILES, found, strict=True):
        wanted = generator.GetCountFingerprint(Chem.MolFromSmiles(text)).GetNonzeroElements()
        assert {int(i): int(counts[i]) for i in counts.nonzero()[0]} == wanted


def test_the_writing_of_a_molecule_does_not_matter_and_large_counts_end_at_a_byte():
    assert np.array_equal(*ecfp_counts(["OCC", "C(C)O"], 2, 256))
    assert ecfp_counts(["C" * 300], 0, 16).max() == LARGEST
    with pytest.raises(ValueError, match="invalid SMILES"):
        ecfp_counts(["C1"], 2, 16)


def test_a_cache_is_keyed_by_radius_and_size(tmp_path):
    first = ecfp_counts(SMILES, 2, 64, cache_dir=tmp_path)
    assert np.array_equal(ecfp_counts(SMILES, 2, 64, cache_dir=tmp_path), first) and len(list(tmp_path.iterdir())) == 1
    assert not np.array_equal(ecfp_counts(SMILES, 1, 64, cache_dir=tmp_path), first)
    assert ecfp_counts(SMILES, 2, 32, cache_dir=tmp_path).shape == (6, 32) and len(list(tmp_path.iterdir())) == 3
    assert ecfp_counts([], 2, 64).shape == (0, 64) and count_chunk([], 2, 64)["bin"].dtype == np.int32


def test_batches_clients_and_hashes_have_them_where_asked_for():
    def made(**options):
        data = Chains(num_clients=2, **options)
        data.setup()
        return data

    plain, data, other = made(fingerprint_size=None), made(), made(fingerprint_radius=1)
    assert data.schema == {**plain.schema, "fingerprint_size": 64, "fingerprint_radius": 2}
    assert len({each.fingerprint() for each in (plain, data, other)}) == 3
    assert len({each.client_datamodules()[0].fingerprint() for each in (plain, data, other)}) == 3
    assert "fingerprint" not in next(iter(plain.train_dataloader()))
    everything = torch.from_numpy(ecfp_counts(data.molecules.canonical, 2, 64))
    row = {int(i): counts for i, counts in zip(data.molecules.packed.sample_id, everything, strict=True)}
    for part in (data, *data.client_datamodules()):
        batch = next(iter(part.train_dataloader()))
        assert batch.fingerprint.dtype == torch.uint8
        assert torch.equal(batch.fingerprint, torch.stack([row[i] for i in batch.sample_id.tolist()]))
        assert torch.equal(batch.to_data_list()[1].fingerprint, batch.fingerprint[1:2])
    assert data.molecules.packed.nbytes - plain.molecules.packed.nbytes == len(everything) * 64


@pytest.mark.parametrize(
    ("options", "said"), [({"fingerprint_size": 0}, "at least 1"), ({"fingerprint_radius": -1}, "at least 0")]
)
def test_values_that_cannot_work(options, said):
    with pytest.raises(ValueError, match=f"`data.init_args.{next(iter(options))}` must be a whole number of {said}"):
        ChEMBLDataModule(**options)


def test_molecules_to_predict_have_them_too(tmp_path):
    (tmp_path / "known.csv").write_text("smiles,y\n" + "".join(f"{'C' * n},{n}\n" for n in range(1, 12)))
    (tmp_path / "asked.csv").write_text("smiles\nCCO\n")
    data = MoleculeCSVDataModule(
        files=str(tmp_path / "known.csv"), predict_files=str(tmp_path / "asked.csv"), fingerprint_size=32, num_clients=1,
        partition="iid", min_client_size=1, cache_dir=None,
    )  # fmt: skip
    data.setup()
    batch = next(iter(data.predict_dataloader()))
    assert np.array_equal(batch.fingerprint.numpy(), ecfp_counts(["CCO"], 2, 32))
