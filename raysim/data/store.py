"""The images of a dataset, once per machine, memory-mapped by every process; no training labels.

``<cache>/store/<key>/`` holds train_images.npy, test_images.npy, test_labels.npy and meta.json,
or does not exist: it is written under a lock into a temporary folder and renamed. The true training
labels go to ``raysim.data.truth``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from raysim.data.datasets import Arrays, Dataset, checked, data_root
from raysim.data.truth import truth_file, write_truth
from raysim.errors import DataError
from raysim.storage.files import read_array, write_whole

log = logging.getLogger(__name__)

_FORMAT = 1  # raise it when the files' meaning changes: old stores are then left alone and not read
_FILES = ("train_images.npy", "test_images.npy", "test_labels.npy")


@dataclasses.dataclass(frozen=True)
class ImageStore:
    """A materialised dataset; pickles as the name of its folder, without the arrays."""

    folder: Path
    name: str
    digest: str
    """sha256 over images and labels, the same on every machine."""
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    """Height, width, channels."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_train: int
    num_test: int

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @cached_property
    def train_images(self) -> np.ndarray:
        """Training images (N, H, W, C), memory-mapped, read-only."""
        return _map(self.folder / "train_images.npy")

    @cached_property
    def test_images(self) -> np.ndarray:
        return _map(self.folder / "test_images.npy")

    @cached_property
    def test_labels(self) -> np.ndarray:
        """Test labels (N,), memory-mapped, read-only; the test set is public."""
        return _map(self.folder / "test_labels.npy")

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        """Rebuild from the folder: a pickled memory map would carry the whole array."""
        return open_store, (self.folder,)


_FACTS = [field.name for field in dataclasses.fields(ImageStore) if field.name != "folder"]


def cache_root() -> Path:
    """Return the folder of what can be made again: $RAYSIM_CACHE or ~/.cache/raysim."""
    return Path(os.environ.get("RAYSIM_CACHE") or "~/.cache/raysim").expanduser()


def materialise(dataset: Dataset, root: str | None) -> ImageStore:
    """Return the image store of ``dataset``, written first if this machine lacks it."""
    from filelock import FileLock

    place = Path(root).expanduser() if root is not None else None
    dataset.ensure(place)
    folder = cache_root() / "store" / _key(dataset, place)
    if not _is_complete(folder):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.with_name(f"{folder.name}.lock")):
                if not _is_complete(folder):  # another process may have been first
                    _build(dataset, place, folder)
        except OSError as error:
            raise DataError(
                f"the image store {folder} cannot be written: {error}; free some space, "
                "or set RAYSIM_CACHE to a folder on another disk"
            ) from error
    return open_store(folder)


def open_store(folder: Path) -> ImageStore:
    try:
        meta = json.loads((folder / "meta.json").read_text())
        facts = {name: meta[name] for name in _FACTS}
        tuples = {name: tuple(fact) for name, fact in facts.items() if isinstance(fact, list)}
        return ImageStore(folder=folder, **facts | tuples)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{folder} must be an image store, got: {error!r}; remove the folder and start again"
        ) from error


def prepare(
    images: np.ndarray,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    mode: Literal["channel", "unit"],
) -> np.ndarray:
    """Return images (N, H, W, C) as float32 (N, C, H, W), as a network takes them.

    uint8 is scaled to [0, 1] and, for "channel", normalised; float32 is only transposed.
    """
    if mode not in ("channel", "unit"):
        raise ValueError(f"mode must be 'channel' or 'unit', got {mode!r}; choose one of them")
    first = images.transpose(0, 3, 1, 2)
    if images.dtype == np.float32:
        return np.ascontiguousarray(first)
    ready = first.astype(np.float32, order="C")
    ready /= np.float32(255)
    if mode == "channel":
        ready -= np.array(mean, np.float32)[:, None, None]
        ready /= np.array(std, np.float32)[:, None, None]
    return ready


def _map(path: Path) -> np.ndarray:
    def say(wrong: str) -> str:
        return f"{path} is damaged ({wrong}); remove {path.parent} and start again"

    return read_array(path, say, mapped=True)


def _key(dataset: Dataset, root: Path | None) -> str:
    """Name of the store: changes with the settings and with every source file."""
    base = data_root(root)
    identity = {
        "format": _FORMAT,
        "name": dataset.choice_name,
        "settings": dataclasses.asdict(dataset),  # type: ignore[call-overload]
        "files": [
            [os.path.relpath(path, base), (stat := path.stat()).st_size, stat.st_mtime_ns]
            for path in dataset.sources(root)
        ],
    }
    text = json.dumps(identity, sort_keys=True)
    return f"{dataset.choice_name}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


def _is_complete(folder: Path) -> bool:
    """Return whether every file is there in its recorded size, the truth included."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        sizes = {name: (folder / name).stat().st_size for name in _FILES}
    except (OSError, ValueError):
        return False
    return sizes == meta["bytes"] and truth_file(folder.parents[1], meta["digest"]).is_file()


def _build(dataset: Dataset, root: Path | None, folder: Path) -> None:
    for leftover in folder.parent.glob(f".{folder.name}.*"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        arrays = _write_arrays(dataset, root, work)
        meta: dict[str, Any] = {
            "name": dataset.choice_name,
            "digest": content_digest(
                (arrays.train_images, arrays.train_labels, arrays.test_images, arrays.test_labels)
            ),
            "class_names": arrays.class_names,
            "image_shape": arrays.train_images.shape[1:],
            "mean": arrays.mean,
            "std": arrays.std,
            "num_train": len(arrays.train_images),
            "num_test": len(arrays.test_images),
            "bytes": {name: (work / name).stat().st_size for name in _FILES},
        }
        (work / "meta.json").write_text(json.dumps(meta, indent=1))
        write_truth(folder.parents[1], meta["digest"], arrays.train_labels)
        work.chmod(0o755)  # mkdtemp made it private; others on the machine may read the store
        if folder.exists():  # damaged, or its truth is gone; open memory maps keep the old files
            shutil.rmtree(folder)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    log.info("dataset %s: %d training images in %s", meta["name"], meta["num_train"], folder)


def _write_arrays(dataset: Dataset, root: Path | None, work: Path) -> Arrays:
    """Load the dataset with its images in files below ``work``; return it."""
    made: dict[str, np.ndarray] = {}

    def on_disk(split: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        made[split] = np.lib.format.open_memmap(
            work / f"{split}_images.npy", mode="w+", dtype=np.dtype(dtype), shape=shape
        )
        return made[split]

    arrays = checked(dataset.load(root, on_disk), f"dataset {dataset.choice_name!r}")
    for split, images in (("train", arrays.train_images), ("test", arrays.test_images)):
        if images is made.get(split):
            made[split].flush()  # type: ignore[attr-defined]
        else:
            _save(work / f"{split}_images.npy", images)
    _save(work / "test_labels.npy", arrays.test_labels)
    return arrays


def _save(path: Path, array: np.ndarray) -> None:
    # by a rename: never write over a file that may be mapped
    write_whole(path, lambda file: np.save(file, np.ascontiguousarray(array)))


def content_digest(arrays: Iterable[np.ndarray]) -> str:
    """Return the sha256 over types, shapes and little-endian contents of ``arrays``."""
    total = hashlib.sha256()
    for array in arrays:
        plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        total.update(f"{plain.dtype.str}{plain.shape}".encode())
        total.update(plain.data.cast("B"))
    return total.hexdigest()
