"""A partition and its given labels as one npz file, to run again or share; no true label is in it.

Members, all plain little-endian arrays (``numpy.load`` reads them without pickles):

=============  ==================  ==============================================================
format         ()                  ``raysim-split-1``
dataset        ()                  name of the dataset
digest         ()                  digest of the dataset's content; another dataset is refused
seed           () int64            seed of the run that made it, for the record
ids            (N,) int64          sample ids of client 0, then client 1, ...
offsets        (K + 1,) int64      client k holds ``ids[offsets[k]:offsets[k + 1]]``
given          (N,) int64          given labels, in the order of ``ids``
tasks          (T,) int64          classes of task 0, then task 1, ...
task_offsets   (M + 1,) int64      task m has ``tasks[task_offsets[m]:task_offsets[m + 1]]``
task_of        (K,) int64          task of each client
server_ids     (S,) int64          the server's clean samples
rate           (K,) float64        drawn noise level
is_noisy       (K,) bool           whether the client was drawn as noisy
target         (K,) int64          label all flips go to, or -1
=============  ==================  ==============================================================

The same content gives the same bytes: members are stored uncompressed (zlib versions
differ) with a fixed date.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

import numpy as np
from numpy.lib import format as npy

from raysim.data.noise import NoisyLabels
from raysim.data.partition import Split
from raysim.errors import DataError, OutputError
from raysim.storage.files import open_arrays, write_whole

FORMAT = "raysim-split-1"
_DTYPES = {
    "format": "U",
    "dataset": "U",
    "digest": "U",
    "seed": "<i8",
    "ids": "<i8",
    "offsets": "<i8",
    "given": "<i8",
    "tasks": "<i8",
    "task_offsets": "<i8",
    "task_of": "<i8",
    "server_ids": "<i8",
    "rate": "<f8",
    "is_noisy": "|b1",
    "target": "<i8",
}
_SCALARS = ("format", "dataset", "digest", "seed")


@dataclass(frozen=True, eq=False)
class StoredSplit:
    """Content of a split file; realised noise is missing, since it needs the true labels."""

    split: Split
    given: tuple[np.ndarray, ...]
    rate: np.ndarray
    is_noisy: np.ndarray
    target: np.ndarray
    dataset: str
    digest: str
    seed: int


def export_split(
    path: str | Path, *, split: Split, noisy: NoisyLabels, dataset: str, digest: str, seed: int
) -> None:
    """Write ``split`` and its given labels; the file appears complete or not at all."""
    tasks = [np.array(task, dtype=np.int64) for task in split.tasks]
    members = {
        "format": FORMAT,
        "dataset": dataset,
        "digest": digest,
        "seed": seed,
        "ids": np.concatenate(split.clients),
        "offsets": _offsets(split.clients),
        "given": np.concatenate(noisy.given),
        "tasks": np.concatenate(tasks),
        "task_offsets": _offsets(tasks),
        "task_of": split.task_of,
        "server_ids": split.server_ids,
        "rate": noisy.rate,
        "is_noisy": noisy.is_noisy,
        "target": noisy.target,
    }
    arrays = {name: np.asarray(value, dtype=_DTYPES[name]) for name, value in members.items()}
    goal = Path(path).expanduser()

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                info.create_system = 3  # the byte for Unix, on every system
                with archive.open(info, "w", force_zip64=True) as member:
                    npy.write_array(member, array, version=(1, 0), allow_pickle=False)

    try:
        write_whole(goal, write)
    except OSError as error:
        raise OutputError(
            f"split file {goal} cannot be written, got {error.strerror}; choose another path"
        ) from error


def read_split(path: str | Path, *, setting: str = "") -> StoredSplit:
    """Return the content of a split file; else a ``DataError`` that names the ``setting``."""
    try:
        return _read(path)
    except DataError as wrong:
        raise DataError(f"{setting}: {wrong}" if setting else str(wrong)) from wrong


def _read(path: str | Path) -> StoredSplit:
    arrays = _read_npz(path)
    if str(arrays["format"]) != FORMAT:
        _refuse(path, f"must have format {FORMAT}", repr(str(arrays["format"])))
    clients = _pieces(path, arrays, "ids", "offsets")
    given = _pieces(path, arrays, "given", "offsets")
    tasks = _pieces(path, arrays, "tasks", "task_offsets")
    for name in ("task_of", "rate", "is_noisy", "target"):
        if len(arrays[name]) != len(clients):
            found = f"{len(arrays[name])} for {len(clients)} clients"
            _refuse(path, f"must have one {name} per client", found)
    return StoredSplit(
        split=Split(
            clients=clients,
            tasks=tuple(tuple(map(int, task)) for task in tasks),
            task_of=arrays["task_of"],
            server_ids=arrays["server_ids"],
            source=str(path),
        ),
        given=given,
        rate=arrays["rate"],
        is_noisy=arrays["is_noisy"],
        target=arrays["target"],
        dataset=str(arrays["dataset"]),
        digest=str(arrays["digest"]),
        seed=int(arrays["seed"]),
    )


def _read_npz(path: str | Path) -> dict[str, np.ndarray]:
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataError(
            f"split file {path} must exist, got no file there; export it or correct the path"
        )

    def say(wrong: str) -> str:
        return f"split file {path} must be an npz of plain arrays, got {wrong}; export it again"

    with open_arrays(file, say) as archive:
        missing = sorted(set(_DTYPES) - set(archive.files))
        arrays = {name: archive[name] for name in _DTYPES if name not in missing}
    if missing:
        _refuse(path, "must have all members", f"none called {', '.join(missing)}")
    for name, array in arrays.items():
        want = np.dtype(_DTYPES[name])
        fits = array.dtype.kind == "U" if want.kind == "U" else array.dtype == want
        if not fits or array.ndim != (0 if name in _SCALARS else 1):
            found = f"{array.dtype} with shape {array.shape}"
            _refuse(path, f"must have {name} as in the layout", found)
    return arrays


def _pieces(
    path: str | Path, arrays: Mapping[str, np.ndarray], name: str, offsets: str
) -> tuple[np.ndarray, ...]:
    flat, cuts = arrays[name], arrays[offsets]
    is_cut = len(cuts) > 1 and cuts[0] == 0 and cuts[-1] == len(flat) and (np.diff(cuts) > 0).all()
    if not is_cut:
        found = f"{len(cuts)} offsets for {len(flat)} entries"
        _refuse(path, f"must have {offsets} rising from 0 to the end of {name}", found)
    return tuple(np.split(flat, cuts[1:-1]))


def _offsets(pieces: Sequence[np.ndarray]) -> np.ndarray:
    return np.cumsum([0, *(len(piece) for piece in pieces)])


def _refuse(path: str | Path, rule: str, found: str) -> NoReturn:
    raise DataError(f"split file {path} {rule}, got {found}; export it again")
