"""What a step sees of a run, for one round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from raysim.data.world import DataWorld, DriverData
from raysim.errors import ConfigError
from raysim.experiment.evaluator import Evaluator
from raysim.protocols import ClientId, Federation, GroupId, Where
from raysim.runs.folder import RunFolder

REPAIRED = "repaired_labels"
"""Array of all clients' labels after FB-NLL's correction, one after another."""


@dataclass
class RoundContext:
    """``protocols.Context`` over real parts; fills ``entry``, the round's record."""

    federation: Federation
    config: Any
    classes: int
    image_shape: tuple[int, int, int]
    where: Where
    data: DriverData = field(repr=False)
    world: DataWorld = field(repr=False)
    evaluator: Evaluator = field(repr=False)
    folder: RunFolder = field(repr=False)
    entry: dict[str, Any] = field(repr=False)
    is_repaired: bool = False
    """FB-NLL's correction lies before this stage."""

    @property
    def stage(self) -> str:
        return self.where.stage

    @property
    def round(self) -> int:
        return self.where.round

    @property
    def last(self) -> bool:
        return self.where.round + 1 == self.where.rounds

    @property
    def clean(self) -> tuple[np.ndarray, np.ndarray]:
        """The server's clean images and their labels."""
        return self.data.clean

    def server_features(self, use: str) -> np.ndarray:
        return self.world.features(use, self.data.clean[0])

    def server_images(self) -> np.ndarray:
        return self.world.images(self.data.clean[0])

    def prepared(self, images: np.ndarray) -> np.ndarray:
        return self.world.prepared(images)

    def privilege(self, name: str) -> Any:
        """Hand out the truth to methods that declare it."""
        if name not in self.config.method.privileges:
            raise ConfigError(f"this method does not declare the privilege {name!r}")
        if name == "clean":
            return self.evaluator.clean(self._labels())
        return {"tasks": self.evaluator.tasks}[name]()

    def record(self, **values: Any) -> None:
        self.entry.update(values)

    def sent(self, direction: str, message: str, nbytes: int) -> None:
        counts = self.entry.setdefault("bytes", {"up": {}, "down": {}})[direction]
        counts[message] = counts.get(message, 0) + int(nbytes)

    def observe_groups(self, groups: Mapping[ClientId, GroupId]) -> None:
        self.entry["groups"] = [groups[k] for k in sorted(groups)]
        self.entry.update(self.evaluator.groups(groups))

    def observe_labels(self, labels: Mapping[ClientId, np.ndarray]) -> None:
        """Record the score of corrected labels; those that were kept are judged clean."""
        self._score_labels(labels)
        self.observe_selection(self.evaluator.kept(labels, self._labels()))

    def observe_repair(
        self,
        before: Mapping[ClientId, np.ndarray],
        after: Mapping[ClientId, np.ndarray],
        decided: Mapping[ClientId, Mapping[int, int | None]],
    ) -> None:
        """Record what FB-NLL's correction did, and keep its labels for the stages after it."""
        self._score_labels(after)
        if self.config.correct.before is None:  # else it is not this method that judges
            self.observe_selection(self.evaluator.kept(after))
        self.entry["phases"] = self.evaluator.phases(before, after, decided)
        self.evaluator.repaired = dict(after)
        self.artifact(REPAIRED, np.concatenate([after[k] for k in sorted(after)]))

    def observe_selection(
        self,
        selected: Mapping[ClientId, np.ndarray],
        *,
        by: Literal["selection", "judged"] = "selection",
    ) -> None:
        """Record how well samples judged clean are those with a right label."""
        labels = self._labels() if by == "selection" else None
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
        """Record which clients are taken for noisy, and how right that is."""
        found = [int(k) for k in clients]
        judged = self.evaluator.noisy_clients(found, scores, levels, labels=self._labels())
        self.entry["noisy_clients"] = {"found": found, **judged}

    def artifact(self, name: str, array: np.ndarray) -> None:
        self.folder.artifact(name, array)

    def test_classes(self) -> Mapping[ClientId, tuple[int, ...]]:
        return self.data.test_classes()

    def _score_labels(self, labels: Mapping[ClientId, np.ndarray]) -> None:
        scored = self.evaluator.labels(labels)
        if scored is not None:  # None: the truth is not known
            self.entry["labels"] = scored
        for name, array in self.evaluator.arrays("corrected", self.classes, labels).items():
            self.artifact(name, array)

    def _labels(self) -> Mapping[ClientId, np.ndarray] | None:
        """Return the labels that a judgement of this stage is about; None: the given ones."""
        if not self.is_repaired:
            return None
        if self.evaluator.repaired is None:  # another process ran that stage
            self.evaluator.repaired = self.evaluator.by_client(self.folder.array(REPAIRED))
        return self.evaluator.repaired
