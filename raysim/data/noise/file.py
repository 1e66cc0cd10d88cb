"""The labels that a split file holds."""

from __future__ import annotations

import numpy as np

from raysim.data.noise.labels import NOISE, ClientStreams, Noise, NoisyLabels, realised_noise
from raysim.data.partition import Split
from raysim.errors import ConfigError, DataError
from raysim.settings import settings


@NOISE.register("file")
@settings
class FileNoise(Noise):
    """The given labels of a split file (``raysim.data.split_file``)."""

    path: str | None = None
    """The split file; null: the one the partition came from."""

    def corrupt(
        self, labels: np.ndarray, split: Split, *, classes: int, rngs: ClientStreams
    ) -> NoisyLabels:
        """Return the stored labels if they belong to the samples of ``split``; nothing is drawn."""
        from raysim.data.split_file import read_split  # split_file imports NoisyLabels from here

        path = self.path or split.source
        if not path:
            raise ConfigError(
                "data.noise.path must name a split file when data.partition.kind is not file, got "
                "null; set it, or set data.partition.kind to file"
            )
        stored = read_split(path, setting="data.noise.path")
        theirs, ours = stored.split.clients, split.clients
        if len(theirs) != len(ours) or not all(map(np.array_equal, theirs, ours)):
            raise ConfigError(
                f"data.noise.path: split file {path} holds labels of {len(theirs)} "
                f"clients with other samples than the {len(ours)} of this partition; use "
                "that file as data.partition too, or the settings and seed it was made with"
            )
        used = np.concatenate(stored.given)
        if used.min() < 0 or used.max() >= classes:
            raise DataError(
                f"split file {path} must hold labels in 0..{classes - 1}, got "
                f"{used.min()}..{used.max()}; use the dataset it was made from"
            )
        return NoisyLabels(
            given=stored.given,
            rate=stored.rate,
            realised=realised_noise(labels, split, stored.given),
            is_noisy=stored.is_noisy,
            target=stored.target,
        )
