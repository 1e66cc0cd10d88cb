"""Images that a person brings to a trained model: files, folders, npy and npz.

They are brought to the model's size and channels as photo sets are: a centred cut of the model's
shape, resized.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from raysim.data.datasets.photos import MODES, PHOTOS, fitted, open_photo, photos_below
from raysim.errors import DataError
from raysim.storage.files import open_arrays, read_array
from raysim.storage.labelled import as_labels

if TYPE_CHECKING:
    from PIL.Image import Image

ARRAYS = {".npy", ".npz"}
IMAGES, LABELS = ("x", "images", "x_test"), ("y", "labels", "y_test")
"""Names that these arrays may have in an npz file; the first one present is read."""
Photo = tuple[Path, int | None]
"""A file, and its label where it is known."""
BLOCK = 4096
"""Images in memory at once; whole batches of evaluation, so that cutting changes no batch."""


@dataclass(frozen=True)
class Wanted:
    """What a model takes."""

    image_shape: tuple[int, int, int]
    """Height, width, channels."""
    pixels: str
    """uint8 or float32."""
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """Some images (N, H, W, C) as the model takes them, before they are normalised."""

    names: list[str]
    images: np.ndarray
    labels: list[int | None]


@dataclass
class Changed:
    """How many images were not as the model takes them."""

    resized: int = 0
    recoloured: int = 0
    transposed: list[str] = field(default_factory=list)


def list_sources(sources: Sequence[str], wanted: Wanted) -> list[Path | list[Photo]]:
    """Return array files and lists of photos in the given order; refuse what is neither."""
    found: list[Path | list[Photo]] = []
    for source in sources:
        path = Path(source).expanduser()
        if path.is_dir():
            found.append(_folder(path, wanted.class_names))
        elif not path.is_file():
            raise DataError(f"no file or folder {path}; give images, folders of them, npy or npz")
        elif path.suffix.lower() in ARRAYS:
            found.append(path)
        else:
            found.append([(path, None)])
    if wanted.pixels != "uint8" and any(isinstance(entry, list) for entry in found):
        raise DataError(
            f"the model was trained on {wanted.pixels} arrays, not on pixels, got image files; "
            f"give npy or npz of {wanted.pixels} (N, H, W, C) = {('N', *wanted.image_shape)}"
        )
    return found


def read_blocks(
    sources: Sequence[Path | list[Photo]], wanted: Wanted, changed: Changed
) -> Iterator[Block]:
    """Yield the images of ``list_sources``; what had to be changed is counted in ``changed``."""
    photos: list[Photo] = []
    for source in sources:
        if isinstance(source, list):
            photos += source
            continue
        yield from _photo_blocks(photos, wanted, changed)
        photos = []
        yield from _array_blocks(source, wanted, changed)
    yield from _photo_blocks(photos, wanted, changed)


def _folder(path: Path, class_names: Sequence[str]) -> list[Photo]:
    """Return the photos at any depth; below a folder named like a class, that is their label."""
    files = photos_below(path)
    if not files:
        raise DataError(f"{path} must hold images ({', '.join(sorted(PHOTOS))}), got none")
    known = {name: label for label, name in enumerate(class_names)}
    tops = [file.relative_to(path).parts[:-1] for file in files]
    labels = [known.get(top[0]) if top else None for top in tops]
    return list(zip(files, labels, strict=True))


def _photo_blocks(photos: Sequence[Photo], wanted: Wanted, changed: Changed) -> Iterator[Block]:
    for start in range(0, len(photos), BLOCK):
        part = photos[start : start + BLOCK]
        images = np.empty((len(part), *wanted.image_shape), np.uint8)
        for row, (path, _) in enumerate(part):
            images[row] = _fitted(open_photo(path), wanted, changed, str(path))
        yield Block([str(path) for path, _ in part], images, [label for _, label in part])


def _fitted(picture: Image, wanted: Wanted, changed: Changed, name: str) -> np.ndarray:
    """Return (H, W, C) uint8 as photo sets have it; note what was changed."""
    height, width, channels = wanted.image_shape
    if channels not in MODES:
        raise DataError(f"the model takes {channels} channels, {name} is an image; give npy or npz")
    changed.recoloured += picture.mode not in (MODES[channels], "P", "1")
    changed.resized += picture.size != (width, height)
    return fitted(picture, wanted.image_shape, name)


def _array_blocks(path: Path, wanted: Wanted, changed: Changed) -> Iterator[Block]:
    images, labels = _read(path)
    images = _stacked(images, wanted, changed, str(path))
    if labels is not None:
        classes = len(wanted.class_names)
        do = "write the model's class number of every image"
        labels = as_labels(labels, f"{path}: labels", do, count=len(images), classes=classes)
    for start in range(0, len(images), BLOCK):
        rows = range(start, min(start + BLOCK, len(images)))
        part = _like_wanted(images[rows.start : rows.stop], wanted, changed, str(path))
        given = [None if labels is None else int(labels[row]) for row in rows]
        yield Block([f"{path}[{row}]" for row in rows], part, given)


def _read(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    def say(wrong: str) -> str:
        return f"{path} must be an array file without objects, got: {wrong}; write it again"

    if path.suffix.lower() == ".npy":
        return read_array(path, say, mapped=True), None
    with open_arrays(path, say) as file:
        names = list(file.files)
        images = next((n for n in IMAGES if n in names), names[0] if len(names) == 1 else None)
        labels = next((n for n in LABELS if n in names), None)
        if images is None:
            raise DataError(
                f"{path} must hold images as one of {', '.join(IMAGES)}, got "
                f"{', '.join(names) or 'nothing'}; write it with np.savez(path, x=..., y=...)"
            )
        return file[images], None if labels is None else file[labels]


def _stacked(images: np.ndarray, wanted: Wanted, changed: Changed, name: str) -> np.ndarray:
    """Return a view (N, H, W, C) of a stack or of a single image."""
    height, width, channels = wanted.image_shape
    single = images.shape == wanted.image_shape or (images.ndim == 3 and images.shape[-1] == 3)
    if images.ndim == 2 or (images.ndim == 3 and single and images.shape[0] != 0):
        images = images[None]
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or not images.size:
        raise DataError(
            f"{name} must hold images (N, H, W, C), got shape {images.shape}; write it in that form"
        )
    first = (channels, height, width)
    if images.shape[1:] == first and images.shape[1:] != wanted.image_shape:
        changed.transposed.append(name)
        return images.transpose(0, 2, 3, 1)
    return images


def _like_wanted(images: np.ndarray, wanted: Wanted, changed: Changed, name: str) -> np.ndarray:
    if wanted.pixels != "uint8":
        if images.dtype.kind != "f" or images.shape[1:] != wanted.image_shape:
            raise DataError(
                f"{name} must hold {wanted.pixels} images {wanted.image_shape} as the model was "
                f"trained on, got {images.dtype} {images.shape[1:]}; nothing can be resized here"
            )
        return np.asarray(images, np.float32)
    if images.dtype != np.uint8:
        raise DataError(
            f"{name} must hold uint8 pixels (0 to 255), got {images.dtype}; the model scales and "
            "normalises them itself: write np.rint(255 * images).astype(np.uint8) for images in "
            "[0, 1]"
        )
    if images.shape[1:] == wanted.image_shape:
        return np.asarray(images)
    from PIL.Image import fromarray

    if images.shape[3] not in MODES:
        raise DataError(
            f"{name} must hold images of {wanted.image_shape[2]} channels, last, got shape "
            f"{images.shape}; write it as (N, H, W, C)"
        )
    flat = images[..., 0] if images.shape[3] == 1 else images
    fitted = [_fitted(fromarray(np.asarray(i)), wanted, changed, name) for i in flat]
    return np.stack(fitted)
