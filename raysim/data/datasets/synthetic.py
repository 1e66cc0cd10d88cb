"""Gaussian classes, each near its own random subspace: known truth at any size, for scaling runs.

N samples, D dimensions, R rank. Only elementwise operations and numpy's own sums are used,
no BLAS or LAPACK: their bits differ between CPU types, and the digest of the data must not.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import numpy as np

from raysim.data.datasets.dataset import DATASETS, Arrays, Dataset, NewArray, in_memory
from raysim.seeding import stream
from raysim.settings import In, check, settings

_CHUNK_ROWS = 2048  # keeps the temporaries inside the CPU cache's reach


@DATASETS.register("synthetic")
@settings
class Synthetic(Dataset):
    """x = B_c z + noise_std e, B_c (D, R) orthonormal, z normal around (separation, 0, ...)."""

    classes: Annotated[int, In("[2, inf)")] = 10
    dim: Annotated[int, In("[1, inf)")] = 64
    """Numbers per sample; a square becomes an s x s image, anything else one row of pixels."""
    subspace_rank: int = 5
    per_class: Annotated[int, In("[1, inf)")] = 200
    test_per_class: Annotated[int, In("[1, inf)")] = 40
    noise_std: float = 0.1
    separation: float = 2.0
    """Length of a class mean, which lies inside the class subspace."""
    data_seed: Annotated[int, In("[0, inf)")] = 0

    def __post_init__(self) -> None:
        check(
            1 <= self.subspace_rank <= self.dim,
            "subspace_rank",
            f"must be between 1 and dim ({self.dim})",
            got=self.subspace_rank,
            do="lower it or raise dim",
        )
        check(
            math.isfinite(self.noise_std) and self.noise_std >= 0,
            "noise_std",
            "must be a number >= 0",
            got=self.noise_std,
        )
        check(math.isfinite(self.separation), "separation", "must be finite", got=self.separation)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        side = math.isqrt(self.dim)
        return (side, side, 1) if side * side == self.dim else (1, self.dim, 1)

    def basis(self, label: int) -> np.ndarray:
        """Return the orthonormal basis (D, R) of a class, float32: the known truth."""
        rng = stream(self.data_seed, "synthetic.basis", label)
        return orthonormal(rng.standard_normal((self.subspace_rank, self.dim))).T.astype(np.float32)

    def load(self, root: Path | None, new_array: NewArray = in_memory) -> Arrays:
        """Return the samples, sorted by class."""
        splits = []
        for split, per_class in (("train", self.per_class), ("test", self.test_per_class)):
            shape = (self.classes * per_class, *self.image_shape)
            images = new_array(split, shape, np.float32)
            rows = images.reshape(len(images), self.dim)
            for label in range(self.classes):
                self._fill(rows[label * per_class : (label + 1) * per_class], split, label)
            splits += [images, np.repeat(np.arange(self.classes, dtype=np.int64), per_class)]
        train_images, train_labels, test_images, test_labels = splits
        return Arrays(
            train_images=train_images,
            train_labels=train_labels,
            test_images=test_images,
            test_labels=test_labels,
            class_names=tuple(f"class {label}" for label in range(self.classes)),
            mean=(0.0,),
            std=(1.0,),
        )

    def _fill(self, rows: np.ndarray, split: str, label: int) -> None:
        """Write the samples of one class and split into ``rows`` (N, D)."""
        basis = self.basis(label)
        noise = stream(self.data_seed, f"synthetic.{split}.noise", label)
        inside = stream(self.data_seed, f"synthetic.{split}.inside", label)
        for start in range(0, len(rows), _CHUNK_ROWS):
            count = min(_CHUNK_ROWS, len(rows) - start)
            part = noise.standard_normal((count, self.dim), dtype=np.float32)
            part *= np.float32(self.noise_std)
            weights = inside.standard_normal((count, self.subspace_rank), dtype=np.float32)
            weights[:, 0] += np.float32(self.separation)
            for axis in range(self.subspace_rank):
                part += weights[:, axis, None] * basis[:, axis]
            rows[start : start + count] = part


def orthonormal(vectors: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis (R, D) of the rows, by Gram-Schmidt done twice per row."""
    basis = np.empty_like(vectors)
    for row, vector in enumerate(vectors):
        for _ in range(2):  # once more: the first pass loses digits to cancellation
            for known in basis[:row]:
                vector = vector - (vector * known).sum() * known
        basis[row] = vector / np.sqrt((vector * vector).sum())
    return basis
