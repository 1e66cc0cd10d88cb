"""What a step sees of a run, for one round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raysim.data.world import DataWorld, DriverData
from raysim.errors import ConfigError
from raysim.evaluator import Evaluator
from raysim.protocols import ClientId, Federation, GroupId
from raysim.runtime.run_folder import RunFolder


@dataclass
class RoundContext:
    """``protocols.Context`` over real parts; fills ``entry``, the round's record."""

    federation: Federation
    config: Any
    classes: int
    image_shape: tuple[int, int, int]
    stage: str
    round: int
    last: bool
    data: DriverData = field(repr=False)
    world: DataWorld = field(repr=False)
    evaluator: Evaluator = field(repr=False)
    folder: RunFolder = field(repr=False)
    entry: dict[str, Any] = field(repr=False)

    @property
    def clean(self) -> tuple[np.ndarray, np.ndarray]:
        """The server's clean images and their labels."""
        return self.data.clean

    def server_features(self, use: str) -> np.ndarray:
        """Features of the server's clean images."""
        return self.world.features(use, self.data.clean[0])

    def server_images(self) -> np.ndarray:
        """Return the server's clean images."""
        return self.world.images(self.data.clean[0])

    def prepared(self, images: np.ndarray) -> np.ndarray:
        """Return other images as model input."""
        return self.world.prepared(images)

    def privilege(self, name: str, labels: Mapping[ClientId, np.ndarray] | None = None) -> Any:
        """Hand out the truth to methods that declare it."""
        if name not in self.config.method.privileges:
            raise ConfigError(f"this method does not declare the privilege {name!r}")
        return self.evaluator.clean(labels) if name == "clean" else self.evaluator.tasks()

    def record(self, **values: Any) -> None:
        """Add to the round's record."""
        self.entry.update(values)

    def sent(self, direction: str, message: str, nbytes: int) -> None:
        """Count bytes by direction and message."""
        counts = self.entry.setdefault("bytes", {"up": {}, "down": {}})[direction]
        counts[message] = counts.get(message, 0) + int(nbytes)

    def observe_groups(self, groups: Mapping[ClientId, GroupId]) -> None:
        """Record the grouping and its score."""
        self.entry["groups"] = [groups[k] for k in sorted(groups)]
        self.entry.update(self.evaluator.groups(groups))

    def observe_labels(self, labels: Mapping[ClientId, np.ndarray]) -> None:
        """Record the score of corrected labels; those that were kept are judged clean."""
        scored = self.evaluator.labels(labels)
        if scored is not None:  # None: the truth is not known
            self.entry["labels"] = scored
        self.observe_selection(self.evaluator.kept(labels))
        for name, array in self.evaluator.arrays("corrected", self.classes, labels).items():
            self.artifact(name, array)

    def observe_phases(
        self,
        before: Mapping[ClientId, np.ndarray],
        after: Mapping[ClientId, np.ndarray],
        decided: Mapping[ClientId, Mapping[int, int | None]],
    ) -> None:
        """Record what the phases of FB-NLL's correction did."""
        self.entry["phases"] = self.evaluator.phases(before, after, decided)

    def observe_selection(
        self,
        selected: Mapping[ClientId, np.ndarray],
        *,
        labels: Mapping[ClientId, np.ndarray] | None = None,
        by: str = "selection",
    ) -> None:
        """Record how well samples judged clean are those with a right label."""
        scored = self.evaluator.selection(selected, labels)
        if scored is not None:  # None: the truth is not known
            self.entry[by], scores = scored
            self.entry[f"{by}_of_wrong"] = self.evaluator.detection(selected, labels)
            self.artifact("client_f_score" + ("" if by == "selection" else f"_{by}"), scores)

    def observe_noisy(
        self,
        clients: Sequence[ClientId],
        scores: Mapping[ClientId, float] | None = None,
        levels: Mapping[ClientId, float] | None = None,
    ) -> None:
        """Record who is taken for noisy and how right that is."""
        found = [int(k) for k in clients]
        judged = self.evaluator.noisy_clients(found, scores, levels)
        self.entry["noisy_clients"] = {"found": found, **judged}

    def artifact(self, name: str, array: np.ndarray) -> None:
        """Keep an array in the run directory."""
        self.folder.artifact(name, array)

    def test_classes(self) -> Mapping[ClientId, tuple[int, ...]]:
        """Classes each client is evaluated on."""
        return self.data.test_classes()
