"""Features of a whole training set: computed once per machine, memory-mapped by every process."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

import numpy as np
from filelock import FileLock, Timeout

from raysim.data.features.extractor import Extractor, PixelFeatures
from raysim.errors import DataError
from raysim.storage.files import read_array, write_whole

log = logging.getLogger(__name__)

CHUNK_BYTES = 2**25
CHUNK_STEP = 256  # chunks hold a multiple of this many images, so that few batches are padded


class Images(Protocol):
    """The part of an ``ImageStore`` that features are made of."""

    @property
    def digest(self) -> str: ...

    @property
    def image_shape(self) -> tuple[int, int, int]: ...

    @property
    def train_images(self) -> np.ndarray: ...


def feature_file(store: Images, extractor: Extractor, folder: Path) -> np.ndarray:
    """Features (N, D) float32 of all training images, memory-mapped from ``folder/<key>.npy``.

    The first caller computes the file, under a lock; it appears under its name only when complete.
    """
    dimension = extractor.dimension(store.image_shape)
    if isinstance(extractor, PixelFeatures):
        view = extractor.view(store.train_images)
        if view is not None:
            for start, part in _chunks(view):
                _check_rows(part, part.shape, start, extractor)
            return view

    kind = getattr(extractor, "choice_name", type(extractor).__name__)
    text = f"{store.digest}\n{extractor.fingerprint()}"
    key = f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    path = folder / f"{key}.npy"
    if not path.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / f"{key}.lock"):
                if not path.exists():
                    _remove_leftovers(folder, key)
                    _write(store, extractor, path, dimension)
        except OSError as error:
            raise DataError(
                f"cannot write features into {folder}: {error}; make room there, or let "
                "RAYSIM_CACHE name another folder"
            ) from error
    shape = (len(store.train_images), dimension)

    def say(wrong: str) -> str:
        return f"feature file {path} is damaged ({wrong}); delete it"

    rows = read_array(path, say, mapped=True)
    if rows.shape != shape or rows.dtype != np.float32:
        raise DataError(
            f"feature file {path} must hold {shape} float32, got {rows.shape} {rows.dtype}; "
            "delete it"
        )
    return rows


def _write(store: Images, extractor: Extractor, path: Path, dimension: int) -> None:
    """Compute the file; on any error nothing remains."""
    num_images = len(store.train_images)
    log.info("features of %d images: %s", num_images, extractor.fingerprint())

    def write(file: IO[bytes]) -> None:
        # plain writes: on a full disk a memory map would end the process instead of raising
        descr = np.lib.format.dtype_to_descr(np.dtype(np.float32))
        header = {"descr": descr, "fortran_order": False, "shape": (num_images, dimension)}
        np.lib.format.write_array_header_1_0(file, header)
        for start, images in _chunks(store.train_images):
            rows = extractor.extract(images)
            _check_rows(rows, (len(images), dimension), start, extractor)
            file.write(np.ascontiguousarray(rows).data)

    write_whole(path, write)


def _chunks(images: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """First id and raw images of each chunk, copied out of the memory map."""
    image_bytes = max(1, images[:1].nbytes)
    size = max(CHUNK_STEP, CHUNK_BYTES // image_bytes // CHUNK_STEP * CHUNK_STEP)
    for start in range(0, len(images), size):
        yield start, np.array(images[start : start + size])


def _check_rows(
    rows: np.ndarray, shape: tuple[int, int], first_id: int, extractor: Extractor
) -> None:
    name = extractor.fingerprint()
    if rows.shape != shape or rows.dtype != np.float32:
        raise DataError(
            f"feature extractor {name} must return {shape} float32, got {rows.shape} {rows.dtype}; "
            "correct its extract or dimension"
        )
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise DataError(
            f"feature extractor {name} gives NaN or inf for training image "
            f"{first_id + int(np.argmin(finite))}; check that image and the extractor's weights"
        )


def _remove_leftovers(folder: Path, own_key: str) -> None:
    """Delete the part files of processes that died; one whose lock is held is being written."""
    for part in folder.glob("*.part"):
        key = part.name.lstrip(".").split(".")[0]
        if key == own_key:
            part.unlink(missing_ok=True)
            continue
        try:
            with FileLock(folder / f"{key}.lock", timeout=0):
                part.unlink(missing_ok=True)
        except Timeout:
            continue
