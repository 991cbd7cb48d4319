"""Features from files and from links by hand; matrices that hold what is none are refused."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from datamodules.tables.features import degree_features, read_matrix, stack_features


def test_matrices_of_both_kinds_are_read(tmp_path):
    x = np.array([[0, 2.5], [1, 0], [0, 0]])
    sp.save_npz(tmp_path / "sparse.npz", sp.csr_matrix(x))
    np.savez(tmp_path / "dense.npz", x=x)
    for name in ("sparse.npz", "dense.npz"):
        found = read_matrix(tmp_path / name)
        assert found.dtype == np.float32 and found.toarray().tolist() == x.tolist()


def test_a_matrix_of_pickles_or_wild_indices_is_refused(tmp_path):
    np.savez(tmp_path / "objects.npz", x=np.array([[{}]], dtype=object))
    np.savez(tmp_path / "wild.npz", format=np.array(b"csr"), shape=np.array([5, 2]), data=np.ones(1),
             indices=np.array([10**9]), indptr=np.array([0, 1, 1, 1, 1, 1]))  # fmt: skip
    sp.save_npz(tmp_path / "nan.npz", sp.csr_matrix(np.array([[np.nan]])))
    sp.save_npz(tmp_path / "columns.npz", sp.csc_matrix(np.eye(2)))
    np.savez(tmp_path / "two.npz", a=np.eye(2), b=np.eye(2))
    reasons = {"objects": "", "wild": "", "nan": "NaN or infinite", "columns": "not CSR", "two": "the arrays a, b"}
    for name, reason in reasons.items():
        with pytest.raises(ValueError, match=rf"{name}.npz` holds no features \(.*{reason}"):
            read_matrix(tmp_path / f"{name}.npz")


def test_rows_of_tables_go_on_one_after_another():
    x = stack_features([sp.csr_matrix(np.array([[1.0, 0]])), sp.csr_matrix(np.array([[0, 2.0], [0, 0]]))])
    assert x.layout == torch.sparse_csr and x.to_dense().tolist() == [[1, 0], [0, 2], [0, 0]]


def test_degrees_count_each_neighbour_once():
    # 0-1 written in both directions, 1-2 twice, 2-2 a self-loop, 3 alone: degrees 1, 2, 1, 0
    pairs = torch.tensor([[0, 1, 1, 1, 2], [1, 0, 2, 2, 2]])
    x = degree_features(pairs, 4)
    torch.testing.assert_close(x[:, 0], torch.ones(4))
    torch.testing.assert_close(x[:, 1].expm1(), torch.tensor([1.0, 2, 1, 0]))
