"""Published node-classification graphs. Each needs its raw files below ``root`` (or a network, once); nothing else is
written."""

from pathlib import Path
from typing import Any, Literal

from torch_geometric.data import Data
from torch_geometric.datasets import Amazon, Coauthor, Planetoid

from datamodules.graph import GraphDataModule
from datamodules.rawfiles import find_raw, read_npz, read_planetoid


class PlanetoidDataModule(GraphDataModule):
    """Citation graphs Cora, CiteSeer and PubMed, with their published split (20 training nodes per class).

    Args:
        root: Folder with ``<name>/raw/ind.<name>.*`` or ``planetoid/<name>/raw/ind.<name>.*``; may be read-only.
        name: ``Cora``, ``CiteSeer`` or ``PubMed``.
        options: As for :class:`~datamodules.graph.GraphDataModule`.

    The files are pickles; they are read by an unpickler that can build arrays and nothing else
    (:mod:`datamodules.rawfiles`).
    """

    def __init__(self, root: str = "data", name: Literal["Cora", "CiteSeer", "PubMed"] = "Cora", **options: Any) -> None:
        super().__init__(**options)
        self.root = root
        self.name: str = _choice(name, ("Cora", "CiteSeer", "PubMed"))

    def prepare_data(self) -> None:
        """Download the files if they are missing."""
        self._folder()

    def _folder(self) -> Path:
        parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
        files = [f"ind.{self.name.lower()}.{part}" for part in parts]
        return find_raw(self.root, _folders("planetoid", self.name), files, Planetoid.url + "/")

    def load(self) -> Data:
        return read_planetoid(self._folder(), self.name)


class AmazonDataModule(GraphDataModule):
    """Co-purchase graphs Photo and Computers (no published split).

    Args:
        root: Folder with ``<name>/raw/amazon_electronics_<name>.npz`` or ``amazon/<name>/raw/...``; may be read-only.
        name: ``Photo`` or ``Computers``.
        options: As for :class:`~datamodules.graph.GraphDataModule`.
    """

    def __init__(self, root: str = "data", name: Literal["Photo", "Computers"] = "Photo", **options: Any) -> None:
        super().__init__(**options)
        self.root = root
        self.name: str = _choice(name, ("Photo", "Computers"))

    def prepare_data(self) -> None:
        """Download the file if it is missing."""
        self._file()

    def _file(self) -> Path:
        file = f"amazon_electronics_{self.name.lower()}.npz"
        return find_raw(self.root, _folders("amazon", self.name), [file], Amazon.url) / file

    def load(self) -> Data:
        return read_npz(self._file())


class CoauthorDataModule(GraphDataModule):
    """Co-author graphs CS and Physics (no published split).

    Args:
        root: Folder with ``CS/raw/ms_academic_cs.npz`` or ``coauthor/CS/raw/ms_academic_cs.npz``; may be read-only.
        name: ``CS`` or ``Physics``.
        options: As for :class:`~datamodules.graph.GraphDataModule`.
    """

    def __init__(self, root: str = "data", name: Literal["CS", "Physics"] = "CS", **options: Any) -> None:
        super().__init__(**options)
        self.root = root
        self.name: str = _choice(name, ("CS", "Physics"))

    def prepare_data(self) -> None:
        """Download the file if it is missing."""
        self._file()

    def _file(self) -> Path:
        file = f"ms_academic_{self.name[:3].lower()}.npz"
        return find_raw(self.root, _folders("coauthor", self.name), [file], Coauthor.url) / file

    def load(self) -> Data:
        return read_npz(self._file())


def _choice(name: str, names: tuple[str, ...]) -> str:
    if name not in names:
        raise ValueError(f"`data.init_args.name` is {name!r}, but must be one of: {', '.join(names)}.")
    return name


def _folders(family: str, name: str) -> list[str]:
    """Below ``root``: as PyG wants it, with the family's folder in between, and ``root`` as the dataset's own
    folder."""
    return [f"{name}/raw", f"{family}/{name}/raw", "raw"]
