"""A user's own features: one array (N, D) per client, in npy, npz or parquet files."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from raysim.data.datasets.dataset import by_number
from raysim.errors import DataError, EnvironmentNotFit
from raysim.protocols import Client, ClientRecord
from raysim.storage.files import open_arrays, read_array

SUFFIXES = (".npy", ".npz", ".parquet")
FEATURES = "features"
"""The array that is read from an npz with several, where every file is a client."""


@dataclass(frozen=True)
class FeatureFile:
    """Where the features of one client are."""

    name: str
    path: str
    member: str | None = None
    """Array inside an npz; None: its only one, or the one called features."""

    @property
    def where(self) -> str:
        """File and array, for messages."""
        return f"{self.path}[{self.member}]" if self.member else self.path


def find_files(places: Sequence[str]) -> list[FeatureFile]:
    """Return the clients of files, folders and patterns: one per file, in the order of the names.

    A single npz with several arrays holds one client per array.
    """
    paths = list(dict.fromkeys(path for place in places for path in _expand(place)))
    if len(paths) == 1 and paths[0].suffix == ".npz":
        (path,) = paths
        say = lambda wrong: f"{path} must be an npz archive, got: {wrong}; write it again"  # noqa: E731
        with open_arrays(path, say) as archive:
            members = list(archive.files)
        if len(members) > 1:
            return [FeatureFile(m, str(paths[0]), m) for m in sorted(members, key=by_number)]
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        names = [str(path.with_suffix("")) for path in paths]
    return [FeatureFile(n, str(path)) for n, path in zip(names, paths, strict=True)]


def read_features(file: FeatureFile) -> np.ndarray:
    """Return the rows (N, D) of one client; numbers only, none missing or infinite."""
    array = _read_array(file)
    if array.dtype.kind not in "fiub":
        _refuse(file, "must hold real numbers", str(array.dtype), "write floats or integers")
    if array.ndim != 2:
        do = "write one row per sample and one column per feature"
        _refuse(file, "must be a matrix (samples, features)", f"shape {array.shape}", do)
    if 0 in array.shape:
        do = "leave the client out, or write its features"
        _refuse(file, "must hold at least one sample and feature", f"shape {array.shape}", do)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        _refuse(file, "must be finite", f"NaN or infinity in row {row}", "clean the features")
    wide = np.float32 if array.dtype == np.float32 else np.float64
    return np.asarray(array, dtype=wide)


class FeatureWorld:
    """The files as tasks see them: "sample" k is the whole file of client k, or some ``rows``."""

    def __init__(
        self, files: Sequence[FeatureFile], rows: Sequence[np.ndarray] | None = None
    ) -> None:
        self._files, self._rows = files, rows
        self._first: tuple[str, int] | None = None
        self.samples: dict[int, int] = {}
        """Rows of every file that has been read."""

    @property
    def dimension(self) -> int:
        """Number of features, known after the first file."""
        assert self._first is not None
        return self._first[1]

    def features(self, use: str, sample_ids: np.ndarray) -> np.ndarray:
        """Return the rows of one client; every client must have as many features."""
        client = int(sample_ids[0])
        file = self._files[client]
        rows = read_features(file)
        first, dimension = self._first = self._first or (file.where, rows.shape[1])
        if rows.shape[1] != dimension:
            _refuse(
                file,
                f"must have {dimension} features like {first}",
                f"{rows.shape[1]}",
                "compute the same features for every client",
            )
        self.samples[client] = len(rows)
        return rows if self._rows is None else rows[self._rows[client]]

    def images(self, sample_ids: np.ndarray) -> np.ndarray:
        raise DataError("feature files hold no images; use a dataset")

    @property
    def black(self) -> np.ndarray:
        raise DataError("feature files hold no images; use a dataset")

    def test_set(self, classes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        raise DataError("feature files hold no test images; use a dataset")

    def clients(self) -> list[Client]:
        """Return one client per file."""
        nothing = np.empty(0, dtype=np.int64)
        return [
            Client(ClientRecord(id=k, sample_ids=np.array([k]), labels=nothing), self)
            for k in range(len(self._files))
        ]


def check_exists(path: str) -> None:
    """Refuse a path that is no feature file, before anything is opened."""
    if not Path(path).expanduser().is_file():
        raise DataError(f"no feature file at {path}; correct the path")
    _expand(path)


def _expand(place: str) -> list[Path]:
    path = Path(place).expanduser()
    if path.is_dir():
        found = [p for p in path.iterdir() if p.suffix in SUFFIXES and p.is_file()]
        if not found:
            raise DataError(
                f"{path} must hold feature files, got none that ends in {', '.join(SUFFIXES)}; "
                "name the folder that does, or the files"
            )
        return sorted(found, key=lambda p: by_number(p.name))
    if path.exists():
        if path.suffix not in SUFFIXES:
            raise DataError(
                f"{path} must end in {', '.join(SUFFIXES)}, got {path.suffix or 'no ending'}; "
                "save the features with np.save"
            )
        return [path]
    matches = [Path(p) for p in glob.glob(os.path.expanduser(place), recursive=True)]
    known = [p for p in matches if p.suffix in SUFFIXES]
    if not known:
        raise DataError(f"no feature file at {place}; correct the path or the pattern")
    return sorted(known, key=lambda p: by_number(str(p)))


def _read_array(file: FeatureFile) -> np.ndarray:
    path = Path(file.path)
    if path.suffix == ".parquet":
        return _read_parquet(path)

    def say(wrong: str) -> str:
        kind = "an array of numbers" if path.suffix == ".npy" else "an npz archive of arrays"
        return f"{file.where} must be {kind}, got: {wrong}; write it again"

    if path.suffix == ".npy":
        return read_array(path, say)
    with open_arrays(path, say) as archive:
        return np.asarray(archive[_member(file, archive.files)])


def _member(file: FeatureFile, members: list[str]) -> str:
    if file.member is not None:
        return file.member
    if len(members) == 1:
        return members[0]
    if FEATURES not in members:
        raise DataError(
            f"{file.path} must hold one array, or one called {FEATURES}, got "
            f"{', '.join(members) or 'none'}; write np.savez(path, {FEATURES}=...), or pass this "
            "file alone to take every array as a client"
        )
    return FEATURES


def _read_parquet(path: Path) -> np.ndarray:
    try:
        import pandas as pd

        table = pd.read_parquet(path)
        if len(table.columns) == 1 and table.dtypes.iloc[0].kind == "O":  # one list per row
            return np.stack([np.asarray(row) for row in table.iloc[:, 0]])
        return np.asarray(table.to_numpy())
    except ImportError as missing:
        raise EnvironmentNotFit(
            f"{path}: parquet files need pandas and pyarrow, which are not installed; "
            "pip install 'raysim[parquet]', or save the features with np.save"
        ) from missing
    except (OSError, ValueError) as error:
        raise DataError(f"{path} must be a parquet file, got: {error}; write it again") from error


def _refuse(file: FeatureFile, rule: str, found: str, do: str) -> NoReturn:
    raise DataError(f"{file.where} {rule}, got {found}; {do}")
