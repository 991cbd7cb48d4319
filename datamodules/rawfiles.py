"""Where a dataset's raw files are, how they are fetched when they are missing, and how they are read without running
anything.

Nothing is written when the files are there, so a read-only folder will do, and no network is touched.
"""

import pickle
import shutil
import urllib.request
from collections import defaultdict
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from datamodules.sparse import csr_from_entries
from datamodules.topology import undirected_edges

TIMEOUT_SECONDS = 10  # of each network operation, so that a machine without a network gets its error and does not hang


def find_raw(root: str, candidates: list[str], files: list[str], url: str) -> Path:
    """Folder that holds all of ``files``, downloading what is missing.

    Args:
        root: The user's ``data.init_args.root``.
        candidates: Folders below ``root`` in which the files may lie, the preferred one first.
        files: File names, all in one folder.
        url: Where the library's own download would take them from: ``url + file``.

    Raises:
        ValueError: files are missing and cannot be downloaded; says which and where to put them.
    """
    folders = [Path(root, candidate) for candidate in candidates]
    missing = {folder: [name for name in files if not (folder / name).is_file()] for folder in folders}
    best = min(folders, key=lambda folder: len(missing[folder]))
    if not missing[best]:
        return best
    try:
        for name in missing[best]:
            _download(url + name, best / name)
    except (OSError, HTTPException) as error:  # no network, no such file there, a folder that cannot be written
        absent = [name for name in files if not (best / name).is_file()]
        tried = "; ".join(str(folder) for folder in folders)
        raise ValueError(
            f"`data.init_args.root` is {str(root)!r}, but these files are missing: {', '.join(absent)}. Put them "
            f"into the folder {best} (looked in: {tried}). They could not be downloaded from {url}: {error}."
        ) from error
    return best


def _download(url: str, path: Path) -> None:
    """Fetch one file; it appears under its name only when it is complete."""
    partial = path.with_name(path.name + ".part")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as reply:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(partial, "wb") as file:
                shutil.copyfileobj(reply, file)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_planetoid(folder: Path, name: str) -> Data:
    """Cora, CiteSeer or PubMed: the same numbers as ``torch_geometric.io.read_planetoid_data``, with ``x`` in CSR
    form throughout.

    The published files are Python 2 pickles. They are read by an unpickler that knows NumPy arrays, SciPy's CSR
    matrix (as a plain record), ``defaultdict`` and ``list``, and refuses all else: a tampered file runs no code.
    ``test.index`` is text.

    Nodes of the test range without a row in the files (15 in CiteSeer) get no features and, as in PyG, label 0.
    """
    prefix = folder / f"ind.{name.lower()}"
    x_known, x_test = (_csr_entries(_unpickle(prefix, part)) for part in ("allx", "tx"))
    y_known, y_test = (np.asarray(_unpickle(prefix, part)) for part in ("ally", "ty"))
    test = torch.from_numpy(np.loadtxt(f"{prefix}.test.index", dtype=np.int64, ndmin=1))
    num_known, num_features = x_known[3]
    num_nodes = max(num_known, int(test.max()) + 1)

    row = torch.cat([x_known[0], test[x_test[0]]])
    x = csr_from_entries(row, torch.cat([x_known[1], x_test[1]]), torch.cat([x_known[2], x_test[2]]), (num_nodes, num_features))
    y = torch.zeros(num_nodes, dtype=torch.long)
    y[:num_known] = torch.from_numpy(y_known.argmax(axis=1))
    y[test] = torch.from_numpy(y_test.argmax(axis=1))

    graph = _unpickle(prefix, "graph")
    source = [node for node, neighbours in graph.items() for _ in neighbours]
    target = [node for neighbours in graph.values() for node in neighbours]
    data = Data(x=x, y=y, edge_index=undirected_edges(torch.tensor([source, target]), num_nodes), num_nodes=num_nodes)
    num_train = np.asarray(_unpickle(prefix, "y")).shape[0]
    for mask, ids in (
        ("train", torch.arange(num_train)),
        ("val", torch.arange(num_train, num_train + 500)),
        ("test", test),
    ):
        data[f"{mask}_mask"] = torch.zeros(num_nodes, dtype=torch.bool).index_fill_(0, ids, True)
    return data


def read_npz(path: Path) -> Data:
    """Amazon or Coauthor: the same numbers as ``torch_geometric.io.read_npz``, with ``x`` in CSR form throughout.

    PyG goes through a dense matrix (0.5 GB and 25 s for Coauthor CS); this reads the same file in about a second. As
    there, every positive feature becomes 1, and edges are made undirected without self loops.
    """
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    row, col, values, shape = _entries(*(arrays[f"attr_{part}"] for part in ("data", "indices", "indptr", "shape")))
    x = csr_from_entries(row, col, values, shape)
    x.values()[x.values() > 0] = 1
    source, target, _, _ = _entries(*(arrays[f"adj_{part}"] for part in ("data", "indices", "indptr", "shape")))
    y = torch.from_numpy(arrays["labels"].astype(np.int64))
    return Data(x=x, y=y, edge_index=undirected_edges(torch.stack([source, target]), shape[0]), num_nodes=shape[0])


Entries = tuple[Tensor, Tensor, Tensor, tuple[int, int]]


def _entries(data: Any, indices: Any, indptr: Any, shape: Any) -> Entries:
    """Row, column and float32 value of each stored entry of a CSR matrix, and its shape."""
    row = torch.repeat_interleave(torch.arange(len(indptr) - 1), torch.from_numpy(np.diff(indptr).astype(np.int64)))
    values = torch.from_numpy(np.asarray(data).astype(np.float32))
    return row, torch.from_numpy(np.asarray(indices).astype(np.int64)), values, (int(shape[0]), int(shape[1]))


class _CSRRecord:
    """Stands for ``scipy.sparse.csr_matrix`` while a pickle is read: holds the pickled fields and computes nothing."""


def _csr_entries(record: Any) -> Entries:
    fields = vars(record)
    return _entries(fields["data"], fields["indices"], fields["indptr"], fields.get("_shape") or fields["shape"])


class _DataUnpickler(pickle.Unpickler):
    """Knows the six names that the Planetoid files use, and no other."""

    known: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("scipy.sparse.csr", "csr_matrix"): _CSRRecord,
        ("scipy.sparse._csr", "csr_matrix"): _CSRRecord,
        ("collections", "defaultdict"): defaultdict,
        ("builtins", "list"): list,
    }

    def find_class(self, module: str, name: str) -> Any:
        module = {"__builtin__": "builtins", "numpy._core.multiarray": "numpy.core.multiarray"}.get(module, module)
        if (module, name) not in self.known:
            raise ValueError(f"names `{module}.{name}`, which no Planetoid file needs, and was not read further")
        return self.known[module, name]


def _unpickle(prefix: Path, part: str) -> Any:
    path = f"{prefix}.{part}"
    with open(path, "rb") as file:
        try:
            return _DataUnpickler(file, encoding="latin1").load()
        except Exception as error:  # whatever a damaged file provokes
            raise ValueError(f"`{path}` is not a Planetoid file ({error}). Replace it by the published one.") from error
