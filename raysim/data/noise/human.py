"""Labels that people gave: CIFAR-10N and CIFAR-100N (Wei et al., ICLR 2022)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from raysim.data.datasets import data_root
from raysim.data.datasets.cifar_n import COLUMNS, FILES, find_human_labels, read_human_labels
from raysim.data.noise.labels import NOISE, ClientStreams, Noise, NoisyLabels, realised_noise
from raysim.data.partition import Split
from raysim.errors import ConfigError, DataError
from raysim.settings import settings

_NAMES = {10: "cifar10n", 100: "cifar100n"}


@NOISE.register("human")
@settings
class Human(Noise):
    """Labels that people gave the training images of cifar10 or cifar100 (CIFAR-10N, -100N)."""

    variant: Literal["aggre", "random1", "random2", "random3", "worse", "noisy"] = "worse"
    """cifar10: aggre (majority of three, 9.0 % wrong), random1..3 (one annotator each, 17 to 18 %),
    worse (a wrong one of the three if there is one, 40.2 %); cifar100: noisy (40.2 %)."""
    path: str | None = None
    """Folder with the labels, or their file; null: where the images are."""

    def corrupt(
        self, labels: np.ndarray, split: Split, *, classes: int, rngs: ClientStreams
    ) -> NoisyLabels:
        name = _NAMES.get(classes, "")
        if not name:
            raise ConfigError(
                "data.noise.kind human has labels for data.dataset cifar10 and cifar100 only, got "
                f"a dataset of {classes} classes; choose another noise or dataset"
            )
        if self.variant not in COLUMNS[name]:
            raise ConfigError(
                f"data.noise.variant must be one of {', '.join(COLUMNS[name])} for {classes} "
                f"classes, got {self.variant}; set it to one of these"
            )
        folder = data_root(Path(self.path) if self.path else None)
        path = folder if folder.is_file() else find_human_labels(name, folder)
        if path is None:
            raise DataError(
                f"human labels {name} are not in {folder}; expected there: "
                f"{' or '.join(FILES[name])}; run `raysim data fetch {name}`, or set "
                "data.noise.path to their folder"
            )
        columns = read_human_labels(path)
        column = COLUMNS[name][self.variant]
        for needed in ("clean_label", column):
            if needed not in columns:
                raise DataError(
                    f"{path} must have a column {needed}, got {', '.join(columns)}; remove it and "
                    f"run `raysim data fetch {name}`"
                )
        clean = columns["clean_label"]
        if not np.array_equal(clean, labels):
            found = "another number"
            if clean.shape == labels.shape:
                found = f"{np.count_nonzero(clean != labels)} true labels differ"
            raise DataError(
                f"data.noise.kind human: {path} labels the {len(clean)} training images of CIFAR "
                f"in their original order, got {len(labels)} images "
                f"({found}); set data.dataset to cifar10 or cifar100, or choose another noise"
            )
        given = [columns[column][ids] for ids in split.clients]
        return NoisyLabels.not_drawn(given, realised_noise(labels, split, given))
