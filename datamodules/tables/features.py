"""Features of the nodes of a graph in tables: columns of the nodes, a file besides, or what the links tell."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from datamodules.sparse import csr_tensor
from datamodules.tables.agreement import agree_on_columns, agree_on_width
from datamodules.tables.graph_spec import GraphSpec
from datamodules.tables.label_codes import determining_columns, is_label_code
from datamodules.tables.names import quote_all
from datamodules.tables.nodes import NodeColumns, NodeTable, name_table, read_nodes
from datamodules.tables.scan import MAX_UNPACKED

DEGREE_FEATURES = ("constant", "log(1 + neighbours)")
DAMAGED = (ValueError, TypeError, LookupError, OSError, EOFError, MemoryError, NotImplementedError, RuntimeError,
           zipfile.BadZipFile, zlib.error)  # fmt: skip


@dataclass
class NodeFeatures:
    """Features of the nodes of each table, and what was guessed about them.

    Attributes:
        names: F names; none for a matrix.
        matrices: CSR ``(N, F)`` of each table, all in the same columns; none where the links give them.
        set_aside: Columns that only count or name the rows, with the reason: no features.
        codes: Columns that are the label in other words, and how well they tell it: no features.
        determining: Features that tell the label by themselves, and how well.
        notices: What was found out instead of given.
    """

    names: list[str] = field(default_factory=list)
    matrices: list[sp.csr_matrix] = field(default_factory=list)
    set_aside: dict[str, str] = field(default_factory=dict)
    codes: dict[str, str] = field(default_factory=dict)
    determining: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


def read_features(spec: GraphSpec, tables: Mapping[str, NodeTable]) -> NodeFeatures:
    """Features as ``spec.features`` has them.

    Raises:
        ValueError: There are none, clients or ``spec.trained`` have others, a file is missing or does not fit.
    """
    if spec.features == "degree":
        return NodeFeatures(list(DEGREE_FEATURES))
    return _read_columns(spec, tables) if spec.features is None else _read_files(spec, spec.features, tables)


def _read_columns(spec: GraphSpec, tables: Mapping[str, NodeTable]) -> NodeFeatures:
    """Columns of the tables of nodes: as named, or those of numbers."""
    found = NodeFeatures(set_aside={name: reason for table in tables.values() for name, reason in table.set_aside.items()})
    columns = {name_table(table, client): [name for name in table.feature_names if name not in found.set_aside]
               for client, table in tables.items()}  # fmt: skip
    found.names = agree_on_columns(columns, "feature columns", "Correct the files, or list the columns that all have in "
                                                               "`data.init_args.features`.")  # fmt: skip
    if spec.columns.features is None:
        _leave_out_label(found, tables, spec.columns.label)
        found.notices.append(f"`{spec.root}`: the {len(found.names)} other column(s) of numbers are taken for features: "
                             f"{quote_all(found.names)}.")  # fmt: skip
    if not found.names:
        without = [*found.set_aside, *found.codes]
        left = f" (not taken: {quote_all(without)}, which count or name the rows, or are the label)" if without else ""
        raise ValueError(
            f"`{next(iter(tables.values())).path}` has no column of numbers to be used as features{left}. Name them in "
            "`data.init_args.features`, or set it to `degree` to learn from the links alone."
        )
    found.matrices = [_choose_columns(table.x, table.feature_names, found.names) for table in tables.values()]
    return found


def _leave_out_label(found: NodeFeatures, tables: Mapping[str, NodeTable], label: str | None) -> None:
    """Take from the guessed features those that are the label in other words."""
    if label is None:
        return
    x = sp.vstack([_choose_columns(t.x, t.feature_names, found.names) for t in tables.values()], format="csr")
    labels = [text for table in tables.values() for text in table.label]
    told, classes = determining_columns(x, found.names, labels), len(set(labels) - {""})
    found.codes = {name: str(own) for name, own in told.items() if is_label_code(name, own, label, classes)}
    found.determining = {name: str(own) for name, own in told.items() if name not in found.codes}
    found.names = [name for name in found.names if name not in found.codes]


def _read_files(spec: GraphSpec, name: str, tables: Mapping[str, NodeTable]) -> NodeFeatures:
    """Features from a file besides each table of nodes: matrices, whose columns have no names, or tables."""
    found = NodeFeatures()
    widths, columns = dict[str, int](), dict[str, list[str]]()
    for client, table in tables.items():
        path = table.path.parent / name
        if not path.is_file():
            raise ValueError(f"`data.init_args.features` is {name!r}, but `{path}` is no file. Columns are a "
                             f"list, as in `features: [{name}]`.")  # fmt: skip
        if path.suffix == ".npz":
            x = _matrix_of(table, path)
            widths[name_table(table, client)] = x.shape[1]
        else:
            other = read_nodes(path, NodeColumns(spec.columns.id, all_meant=True), spec.form, spec.decimal)
            found.notices += other.notices
            x = _join(table, other)
            columns[name_table(table, client)] = other.feature_names
        found.matrices.append(x)
    if columns:
        found.names = _as_trained(spec, name, agree_on_columns(columns, "feature columns", "Correct the files."))
        found.matrices = [_choose_columns(x, own, found.names)
                          for x, own in zip(found.matrices, columns.values(), strict=True)]  # fmt: skip
    else:
        found.notices += _compare_widths(spec, name, widths)
    return found


def _matrix_of(table: NodeTable, path: Path) -> sp.csr_matrix:
    """Rows of a matrix for the nodes of a table."""
    x = read_matrix(path)
    if x.shape[0] != len(table.ids):
        raise ValueError(f"`{path}` has {x.shape[0]} rows of features, but `{table.path}` has {len(table.ids)} "
                         "rows of nodes: there must be one for each, in the same order.")  # fmt: skip
    return x[table.kept]


def _join(table: NodeTable, other: NodeTable) -> sp.csr_matrix:
    """Rows of ``other`` in the order of the nodes of ``table``, by id."""
    row = {other.ids[row]: place for place, row in enumerate(other.kept.tolist())}
    ids = [table.ids[row] for row in table.kept]
    missing = [name for name in ids if name not in row]
    if missing:
        raise ValueError(
            f"`{other.path}` has no usable row for {len(missing)} nodes of `{table.path}`: ids "
            f"{', '.join(map(repr, missing[:5]))}."
        )
    return other.x[[row[name] for name in ids]]


def _as_trained(spec: GraphSpec, file: str, found: list[str]) -> list[str]:
    """The columns in the order in which a model knows them.

    Raises:
        ValueError: They are others.
    """
    trained = found if spec.trained is None else list(spec.trained.names)
    if set(trained) != set(found):
        raise ValueError(
            f"`data.init_args.predict_root`: `{file}` has the feature columns {quote_all(found)} there, but the "
            f"model learns from {quote_all(trained)}."
        )
    return trained


def _compare_widths(spec: GraphSpec, file: str, widths: Mapping[str, int]) -> list[str]:
    """A notice if only numbers of columns can be compared.

    Raises:
        ValueError: They differ.
    """
    width, trained = agree_on_width(widths, "features"), spec.trained
    if trained is not None and width != trained.width:
        raise ValueError(f"`data.init_args.predict_root`: `{file}` has {width} features there, but the model "
                         f"learns from {trained.width}.")  # fmt: skip
    if len(widths) == 1 and trained is None:
        return []
    among = "the clients'" if trained is None else "those of `root` and `predict_root`"
    return [f"`{file}`: a matrix has no names of columns, so that only the number of {among} "
            f"({width}) is compared: each column must mean the same in all files."]  # fmt: skip


def _choose_columns(x: sp.csr_matrix, names: list[str], chosen: list[str]) -> sp.csr_matrix:
    return x[:, [names.index(name) for name in chosen]]


def read_matrix(path: Path) -> sp.csr_matrix:
    """Features from a ``.npz`` without pickle: a SciPy sparse matrix (``scipy.sparse.save_npz``) or one 2-D array.

    Raises:
        ValueError: It is neither, or its indices do not fit its shape.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(item.file_size for item in archive.infolist()) > MAX_UNPACKED:
                raise ValueError(f"it unpacks to more than {MAX_UNPACKED >> 30} GiB")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        if "indptr" in arrays:
            if arrays["format"].item() not in (b"csr", "csr"):
                raise ValueError("its sparse format is not CSR: save `matrix.tocsr()`")
            shape = tuple(int(size) for size in arrays["shape"])
            x = sp.csr_matrix((arrays["data"], arrays["indices"], arrays["indptr"]), shape=shape)
            x.check_format(full_check=True)
        else:
            flat = [array for array in arrays.values() if array.ndim == 2]
            if len(flat) != 1:
                raise ValueError(f"it has the arrays {', '.join(arrays) or 'none'}")
            x = sp.csr_matrix(flat[0])
        x = x.astype(np.float32)
        if not np.isfinite(x.data).all():
            raise ValueError("some features are NaN or infinite")
        return x
    except DAMAGED as error:
        raise ValueError(
            f"`{path}` holds no features ({error}). Needed is a `.npz` of `scipy.sparse.save_npz`, or of `numpy.savez` "
            "with one array of shape (nodes, features)."
        ) from error


def stack_features(matrices: list[sp.csr_matrix]) -> Tensor:
    """Rows of all tables one after another, as a CSR tensor ``(N, F)``."""
    x = sp.vstack(matrices, format="csr")
    x.sum_duplicates()
    indptr, indices, values = (torch.from_numpy(np.ascontiguousarray(part)) for part in (x.indptr, x.indices, x.data))
    return csr_tensor(indptr, indices, values, x.shape)


def degree_features(pairs: Tensor, num_nodes: int) -> Tensor:
    """A constant and log(1 + number of distinct neighbours), ``(N, 2)``, from links as positions ``(2, E)``."""
    pairs = pairs[:, pairs[0] != pairs[1]]
    both = torch.cat([pairs, pairs.flip(0)], dim=1)
    key = torch.unique(both[0] * num_nodes + both[1])
    degree = torch.bincount(torch.div(key, max(num_nodes, 1), rounding_mode="floor"), minlength=num_nodes)
    return torch.stack([torch.ones(num_nodes), degree.float().log1p()], dim=1)
