"""Clients' own data: a dataset that is a folder with a file or folder per client.

Training images are those of client 0, then client 1, ..., then the server's clean ones. The given
labels are the user's. Where the files hold no true labels, nothing is scored against a truth.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np

from raysim.data.datasets.client_folder import (
    DO,
    SERVER,
    TEST,
    ClientFolder,
    Part,
    read_client_folder,
)
from raysim.data.datasets.dataset import (
    DATASETS,
    Arrays,
    Dataset,
    NewArray,
    channel_statistics,
    data_root,
    in_memory,
)
from raysim.data.datasets.photos import decode
from raysim.data.noise import NoisyLabels
from raysim.data.partition import Split, floor_share
from raysim.errors import ConfigError, DataError
from raysim.seeding import stream
from raysim.settings import In, settings
from raysim.storage.labelled import as_images, read_members


@DATASETS.register("client_files")
@settings
class ClientFiles(Dataset):
    """Your own data, one npz file or folder of photos per client (with partition ``given``)."""

    size: Annotated[int, In("[8, 1024]")] = 64
    """Side of the square images made from photos, pixels; npz images stay as they are."""
    test_fraction: Annotated[float, In("[0, 1)")] = 0.0
    """Share of every client's images that is held out for the test; 0: there is a test set."""

    def folder(self, root: Path | None) -> Path:
        return data_root(root) / "client_files" if root is None else data_root(root)

    def ensure(self, root: Path | None) -> None:
        """Raise unless the clients and a test set are there."""
        self._read(root)

    def sources(self, root: Path | None) -> list[Path]:
        return self._read(root).sources

    def load(self, root: Path | None, new_array: NewArray = in_memory) -> Arrays:
        """Return the images of all clients, of the server, and of the test."""
        found = self._read(root)
        held = _held_out(found, self.test_fraction)
        train = [
            (part, np.delete(part.rows, rows))
            for part, rows in zip(found.clients, held, strict=True)
        ]
        if found.server is not None:
            train.append((found.server, found.server.rows))
        test = list(zip(found.clients, held, strict=True))
        if found.test is not None:
            test = [(found.test, found.test.rows)]
        train_arrays = self._gather("train", train, new_array)
        test_arrays = self._gather("test", test, new_array)
        channels = train_arrays[0].shape[3]
        mean, std = (0.0,) * channels, (1.0,) * channels
        if train_arrays[0].dtype == np.uint8:
            mean, std = channel_statistics(train_arrays[0])
        return Arrays(
            *train_arrays, *test_arrays, class_names=found.class_names, mean=mean, std=std
        )

    def given(self, root: str | None, per_class: int) -> tuple[ClientFolder, Split, NoisyLabels]:
        """Return who holds which row with which label, as the files say.

        ``per_class`` is data.server.per_class.
        """
        found = self._read(Path(root).expanduser() if root is not None else None)
        if found.server is None and per_class > 0:
            raise ConfigError(
                f"data.server.per_class is {per_class}, but {found.root} has no clean set of the "
                f"server, and clients' images are never moved there; add {SERVER}.npz or "
                f"{SERVER}/<class>/ with labels you trust, or set data.server.per_class to 0"
            )
        if found.server is not None and per_class == 0:
            raise ConfigError(
                f"data.server.per_class is 0, but {found.server.path} holds clean images; raise it "
                "(all of them are used), or remove them"
            )
        held = _held_out(found, self.test_fraction)
        kept = [np.delete(p.labels, rows) for p, rows in zip(found.clients, held, strict=True)]
        true = [np.delete(p.truth, rows) for p, rows in zip(found.clients, held, strict=True)]
        ends = np.cumsum([len(labels) for labels in kept])
        wrong = np.array([np.mean(a != b) for a, b in zip(kept, true, strict=True)])
        clean = 0 if found.server is None else len(found.server.labels)
        split = Split(
            clients=tuple(np.arange(e - len(y), e) for e, y in zip(ends, kept, strict=True)),
            tasks=found.tasks,
            task_of=found.task_of,
            server_ids=np.arange(ends[-1], ends[-1] + clean),
        )
        return found, split, NoisyLabels.not_drawn(kept, wrong)

    def _read(self, root: Path | None) -> ClientFolder:
        found = read_client_folder(self.folder(root))
        if found.test is None and self.test_fraction == 0.0:
            raise DataError(
                f"{found.root} must hold a test set, {TEST}.npz or {TEST}/<class>/, got none; add "
                "it, or hold a share of every client's images out: data.dataset.test_fraction=0.2"
            )
        if found.test is not None and self.test_fraction > 0.0:
            raise ConfigError(
                f"data.dataset.test_fraction is {self.test_fraction}, but {found.test.path} is "
                "there; set it to 0, or remove the test set"
            )
        return found

    def _gather(
        self, split: str, parts: list[tuple[Part, np.ndarray]], new_array: NewArray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the images and true labels of these rows, one part after another."""
        count, at = sum(len(rows) for _, rows in parts), 0
        images: np.ndarray | None = None
        for part, rows in parts:
            if part.photos:
                own = np.empty((len(rows), self.size, self.size, 3), np.uint8)
                decode([part.photos[i] for i in rows], own)
            else:
                own = _npz_images(part)[rows]
            if images is None:
                images, first = new_array(split, (count, *own.shape[1:]), own.dtype), part
            if own.shape[1:] != images.shape[1:] or own.dtype != images.dtype:
                raise DataError(
                    f"{part.path} must hold images like {first.path}, {images.dtype} "
                    f"{images.shape[1:]}, got {own.dtype} {own.shape[1:]}; write all the same way"
                )
            images[at : at + len(own)] = own
            at += len(own)
        assert images is not None
        return images, np.concatenate([part.truth[rows] for part, rows in parts])


def _npz_images(part: Part) -> np.ndarray:
    """Return the images (N, H, W, C) of an npz, uint8 or float32."""
    stored = read_members(part.path, ("images",), DO)["images"]
    images = as_images(stored, f"{part.path}: images", DO, floats=True)
    if len(images) != len(part.labels):
        raise DataError(
            f"{part.path} must hold one label per image, got {len(part.labels)} labels for "
            f"{len(images)} images; {DO}"
        )
    return images


def _held_out(found: ClientFolder, fraction: float) -> list[np.ndarray]:
    """Return the rows of every client that are the test, the same in every run."""
    rows = []
    for k, part in enumerate(found.clients):
        count = floor_share(fraction, len(part.labels))
        if fraction > 0.0 and not 0 < count < len(part.labels):
            raise DataError(
                f"data.dataset.test_fraction {fraction} takes {count} of the {len(part.labels)} "
                f"images of {part.path}; change it, or add a test set"
            )
        drawn = stream(0, "client_files.test", k).choice(len(part.labels), count, replace=False)
        rows.append(np.sort(drawn))
    return rows
