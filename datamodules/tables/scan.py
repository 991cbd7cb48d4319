"""What a data file is, before anything is parsed: refuses what is no table, and bounds what reading it can cost.

A scan reads the file once in blocks (unpacking gzip on the way) and keeps only counts and the first lines, so that its
memory does not depend on the file. Nothing in a file is ever executed: pickles, archives and binaries are refused by
their first bytes, whatever their name is.
"""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tqdm import tqdm

BLOCK = 1 << 20
HEAD = 1 << 16
MAX_LINE = 1 << 24  # bytes: no row of a table is longer, and a reader has to hold one line in memory
MAX_UNPACKED = 1 << 36  # bytes of a gzip file once unpacked

REFUSED = (
    (b"\x89PNG", "an image"),
    (b"PK\x03\x04", "a ZIP archive (.zip, .xlsx, .npz, .pt): unpack it, or save the sheet as CSV"),
    (b"BZh", "packed with bzip2: unpack it or use gzip"),
    (b"\xfd7zXZ", "packed with xz: unpack it or use gzip"),
    (b"(\xb5/\xfd", "packed with zstd: unpack it or use gzip"),
    (b"\x89HDF", "an HDF5 file"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x7fELF", "a program"),
    (b"%PDF", "a PDF"),
)
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class Scan:
    """What is known of a file before it is parsed.

    Attributes:
        kind: ``text``, ``gzip`` (text, packed) or ``parquet``.
        size: Bytes of text, unpacked.
        lines: Number of line ends (LF, CR LF or CR).
        head: The first lines of text, without a byte order mark.
    """

    kind: str
    size: int = 0
    lines: int = 0
    head: str = ""


def scan(path: Path, encoding: str = "utf-8") -> Scan:
    """Look at a whole file in bounded memory.

    Args:
        path: The file.
        encoding: Of its text.

    Raises:
        ValueError: It is missing, empty, no text, or has a line longer than ``MAX_LINE`` bytes.
    """
    _codec(encoding)
    if path.is_dir():
        raise ValueError(f"`{path}` is a folder, but a file is needed.")
    if not path.is_file():
        raise ValueError(f"`{path}` is no file: check the path, which counts from where the command runs.")
    with open(path, "rb") as file:
        start = file.read(16)
    if start[:4] == b"PAR1":
        return Scan("parquet")
    packed = start[:2] == b"\x1f\x8b"
    try:
        with open_bytes(path) as file:
            size, lines, head = _read_through(path, file, encoding, path.stat().st_size if not packed else None)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"`{path}` is a damaged gzip file ({error}). Copy it again.") from error
    if not head.strip():
        raise ValueError(f"`{path}` is empty. Fill it, or leave the file out.")
    return Scan("gzip" if packed else "text", size, lines, head)


def open_bytes(path: Path) -> BinaryIO:
    """The file's bytes, unpacked if they are gzip (by content, not by name)."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else open(path, "rb")  # type: ignore[return-value]  # reads bytes like any file


def open_text(path: Path, encoding: str) -> io.TextIOWrapper:
    """The file's text with its line ends as they are, without a byte order mark."""
    return io.TextIOWrapper(open_bytes(path), encoding=_codec(encoding), newline="")


def _read_through(path: Path, file: BinaryIO, encoding: str, total: int | None) -> tuple[int, int, str]:
    size, lines, since, head = 0, 0, 0, b""
    wide = encoding.lower().replace("_", "-").startswith(("utf-16", "utf-32"))
    with tqdm(total=total, desc=f"checking {path.name}", unit="B", unit_scale=True, disable=None, delay=1.0,
              leave=False) as bar:  # fmt: skip
        while block := file.read(BLOCK):
            if size == 0:
                _refuse(path, block, wide)
                head = block[:HEAD]
            values = np.frombuffer(block, dtype=np.uint8)
            if not wide and (values == 0).any():
                raise ValueError(
                    f"`{path}` is no text: it has a zero byte near byte {size + int((values == 0).argmax())}. Tables are "
                    "CSV (plain or gzip) or parquet; for UTF-16 text set `data.init_args.encoding: utf-16`."
                )
            ends = np.flatnonzero((values == 10) | (values == 13))
            gaps = np.diff(ends, prepend=-1 - since, append=len(block))
            if int(gaps.max()) > MAX_LINE:
                raise ValueError(
                    f"`{path}` has a line of more than {MAX_LINE >> 20} MiB (from byte {max(size - since, 0)} on or later): "
                    "it is no table with one row per line. Is it another kind of file?"
                )
            since = len(block) - 1 - int(ends[-1]) if len(ends) else since + len(block)
            size, lines = size + len(block), lines + len(ends)
            if size > MAX_UNPACKED:
                raise ValueError(f"`{path}` unpacks to more than {MAX_UNPACKED >> 30} GiB. Split it into several files.")
            bar.update(len(block))
    decoder = codecs.getincrementaldecoder(_codec(encoding))()
    try:
        return size, lines, decoder.decode(head)
    except UnicodeDecodeError as error:
        raise not_in_encoding(path, encoding, error) from error


def not_in_encoding(path: Path, encoding: str, error: UnicodeDecodeError) -> ValueError:
    """What to say of a file with other text than ``data.init_args.encoding``."""
    found = error.object[error.start : error.start + 1]
    return ValueError(
        f"`{path}` is not {encoding} text (byte {found!r}). Set `data.init_args.encoding`: files of Excel on Windows are "
        "often `cp1252`."
    )


def _codec(encoding: str) -> str:
    try:
        name = codecs.lookup(encoding).name
    except LookupError as error:
        raise ValueError(
            f"`data.init_args.encoding` is {encoding!r}, which is unknown. Use for example `utf-8` or `cp1252`."
        ) from error
    return "utf-8-sig" if name == "utf-8" else name


def _refuse(path: Path, start: bytes, wide: bool) -> None:
    if start[:1] == b"\x80" and start[1:2] in (b"\x01", b"\x02", b"\x03", b"\x04", b"\x05"):
        raise ValueError(
            f"`{path}` is a Python pickle, which can run code when it is read: it is never opened here, whatever its "
            "name. Save the table as CSV or parquet."
        )
    for magic, name in REFUSED:
        if start.startswith(magic):
            raise ValueError(f"`{path}` is no table but {name}. Tables are CSV (plain or gzip) or parquet.")
    if not wide and start[:2] in UTF16:
        raise ValueError(f"`{path}` is UTF-16 text. Set `data.init_args.encoding: utf-16`, or save it as UTF-8.")
