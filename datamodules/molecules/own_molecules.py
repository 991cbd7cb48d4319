"""People's own molecules as federated data: one file, or one file per client.

What is in the files is read by :func:`~datamodules.molecules.own.reader.read_molecules`.
"""

from __future__ import annotations

from typing import Any, Literal

from datamodules.findings import with_remedies
from datamodules.molecules.datamodule import MoleculeDataModule
from datamodules.molecules.own.files import find_files, is_sdf, unread_files
from datamodules.molecules.own.findings import own_findings
from datamodules.molecules.own.reader import OWNER, MoleculeTables, read_molecules, read_predicted
from datamodules.molecules.own.spec import METRICS, MoleculeSpec
from datamodules.molecules.table import MoleculeSet
from datamodules.predicted import PredictedRows
from datamodules.tables.table import TableFormat

# Where the sites are given.
REMEDIES = {
    "scaffold_skew": "The sites are given: FLIT and personalised strategies bear clients that differ.",
    "small_client": "A smaller `data.init_args.batch_size`, or nothing.",
    "empty": "More rows for this site, or nothing: it is served and does not teach.",
    "one_class": "The sites are given: the other sites teach the other class.",
}


class MoleculeCSVDataModule(MoleculeDataModule):
    """Molecular property prediction on one's own files.

    Args:
        files: A file (CSV of any separator and line end, plain or gzip; parquet; SDF), several, or a folder of them.
        smiles_column: Column of SMILES; not for SDF.
        targets: Column of labels, or several; blank = missing, and a client may lack some. Null = all other columns of numbers,
            but for those that only count or name rows (``num``, ``PubChem CID``).
        id_column: Column of ids, which predictions keep; null = ``row`` or ``file:row``, and for SDF a record's first line.
        client_column: Column that names each row's client. Rows without a client cannot be used.
        task: ``regression`` or ``classification`` (labels 0 and 1); null = found out from the labels.
        metric: ``rmse`` or ``mae`` for regression, ``auroc`` for classification; null = the first.
        units: Unit by task; null = what column names have in brackets, as in ``solubility [g/L]``.
        geometry: For SDF: positions (``lit_models.SchNet``) in place of bonds.
        separator: Of fields; null = found out.
        decimal: ``.`` or ``,``; null = that of most numbers of each column.
        encoding: Of text.
        header: Whether the first line names the columns; otherwise they are ``"0"``, ``"1"``, ... (as ``.smi`` files have it).
        partition: ``file`` (one client per file), ``column`` (one per value of ``client_column``) or one of
            ``MoleculeDataModule``'s; null = ``column`` with a ``client_column``, ``file`` for several files, else
            ``scaffold_lda``.
        predict_files: Files for ``predict`` in place of ``files``, written in the same way; labels and clients are not
            needed. Training, splits and label statistics are those of ``files`` all the same.
        options: Everything else that ``MoleculeDataModule`` takes. Its ``invalid`` is for all rows that cannot be used: no
            molecule, a label that is no number, no client, another number of fields than the header.

    Raises:
        ValueError: A value or a file that cannot work, in the names of the YAML file.
    """

    def __init__(
        self,
        files: str | list[str] = "molecules.csv",
        smiles_column: str = "smiles",
        targets: str | list[str] | None = None,
        id_column: str | None = None,
        client_column: str | None = None,
        task: Literal["regression", "classification"] | None = None,
        metric: Literal["rmse", "mae", "auroc"] | None = None,
        units: dict[str, str] | None = None,
        geometry: bool = False,
        separator: str | None = None,
        decimal: Literal[".", ","] | None = None,
        encoding: str = "utf-8",
        header: bool = True,
        partition: Literal["file", "column", "scaffold_lda", "official", "iid", "random", "label"] | None = None,
        predict_files: str | list[str] | None = None,
        **options: Any,
    ) -> None:
        paths = find_files(files)
        if partition is None:
            partition = "column" if client_column else "file" if len(paths) > 1 else "scaffold_lda"
        if partition == "file" and client_column is not None:
            raise ValueError(
                "`data.init_args.partition: file` makes each file a client: leave out `data.init_args.client_column`."
            )
        own = partition in ("file", "column")
        super().__init__(
            partition="column" if own else partition,  # type: ignore[arg-type]  # `own` are the others
            client_column=OWNER if partition == "file" else client_column,
            **options,
        )
        if own:
            self.client_column = OWNER
        if metric is not None and task is not None and metric not in METRICS[task]:
            raise ValueError(
                f"`data.init_args.metric` is {metric!r}, but for {task} it must be one of: {', '.join(METRICS[task])}."
            )
        self.predict_paths = [] if predict_files is None else find_files(predict_files)
        self.spec = MoleculeSpec(
            paths=tuple(paths),
            smiles_column=smiles_column,
            targets=_as_tuple(targets),
            id_column=id_column,
            client_column=client_column,
            by_file=partition == "file",
            task=task,
            metric=metric,
            units=units,
            geometry=geometry,
            form=TableFormat(separator, encoding, header),
            decimal=decimal,
            unread=tuple(unread_files(files)),
            invalid=self.invalid,
            fragments=self.fragments,
            workers=self.featurise_workers,
            cache_dir=self.cache_dir,
        )
        self._refuse_geometry()
        self.original_ids: list[str] = []
        self.row_clients: list[str] = []
        self.notices: list[str] = []
        self.predicted_rows: PredictedRows | None = None
        self._tables: MoleculeTables | None = None

    def _refuse_geometry(self) -> None:
        """Raises ``ValueError`` where positions are asked for that the files cannot have, or of parts of molecules."""
        flat = [path.name for path in (*self.spec.paths, *self.predict_paths) if not is_sdf(path)]
        if self.spec.geometry and flat:
            raise ValueError(
                "`data.init_args.geometry: true` needs positions, which only SDF files (*.sdf, *.sdf.gz) have, "
                f"but there is {flat[0]!r}."
            )
        if self.spec.geometry and self.fragments != "all":
            raise ValueError(
                "`data.init_args.fragments: largest` is for bonds: with `data.init_args.geometry: true` all "
                "parts of a record are kept. Leave it out."
            )

    def setup(self, stage: str | None = None) -> None:
        """Load, split and share out; then read ``predict_files``. Does nothing the second time."""
        first = self._molecules is None
        super().setup(stage)
        if first and self.predict_paths:
            asked, self.predicted_rows = read_predicted(self.spec, self.predict_paths, self.task_names)
            packed = self.with_fingerprints(asked).packed
            for part in (self, *self.client_datamodules()):
                part.set_predicted(packed)

    def load(self) -> MoleculeSet:
        tables = read_molecules(self.spec)
        self._tables, self.task, self.metric = tables, tables.task, tables.metric
        self.original_ids, self.notices = tables.ids, tables.notices
        if self.partition == "column":
            self.row_clients = tables.owner
        return tables.molecules

    @property
    def lost_clients(self) -> list[str]:
        """Clients that the files name and that are none of the federation, since no row of theirs can be used."""
        return [] if self._tables is None or self.partition != "column" else self._tables.lost_clients

    @property
    def _method(self) -> str:
        return "file" if self.spec.by_file else self.partition

    def partition_record(self) -> dict[str, Any]:
        return {**super().partition_record(), "method": self._method}

    def report(self) -> dict[str, Any]:
        report = super().report()
        own = report["client_names"] if self.partition == "column" else []
        found = [] if self._tables is None else own_findings(self.spec, self._tables, self.molecules, own)
        others = with_remedies(report["findings"], REMEDIES) if own else report["findings"]
        return {
            **report,
            "partition": self._method,
            "notices": self.notices,
            "files": [str(path) for path in self.spec.paths],
            "findings": found + others,
        }


def _as_tuple(names: str | list[str] | None) -> tuple[str, ...] | None:
    return (names,) if isinstance(names, str) else None if names is None else tuple(names)
