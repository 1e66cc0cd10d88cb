"""A small world in memory, and the context of one round over it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from raysim.config import load_config
from raysim.experiment.context import RoundContext
from raysim.experiment.evaluator import Evaluator
from raysim.protocols import ClientRecord, Where
from raysim.runtime.local import LocalFederation


class FakeWorld:
    """Arrays instead of files; remembers which test sets were opened."""

    def __init__(self, rows: int) -> None:
        self.by_use: dict[str, np.ndarray] = {}
        self.pixels = np.zeros((rows, 1, 2, 2), np.float32)
        self.test_images = np.zeros((0, 1, 2, 2), np.float32)
        self.test_labels = np.zeros(0, np.int64)
        self.opened: list[tuple[int, ...]] = []

    @property
    def black(self) -> np.ndarray:
        return np.zeros(self.pixels.shape[1], np.float32)

    def images(self, sample_ids: np.ndarray) -> np.ndarray:
        return self.pixels[sample_ids]

    def features(self, use: str, sample_ids: np.ndarray) -> np.ndarray:
        return self.by_use[use][sample_ids]

    def test_set(self, classes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        self.opened.append(classes)
        chosen = np.isin(self.test_labels, classes)
        return self.test_images[chosen], self.test_labels[chosen]


class SplitFederation(LocalFederation):
    """The same clients in several cohorts, as on several actors; for maps only."""

    def __init__(self, records, spec, cut) -> None:
        super().__init__(records, spec)
        own = [[r for r in records if r.id in part] for part in cut]
        self.parts = [LocalFederation(part, spec) for part in own]

    def map(self, task, *, on=None, **arguments):
        ids = self.clients if on is None else on
        replies = {}
        for part in self.parts:
            mine = [k for k in ids if k in part.clients]
            replies |= part.map(task, on=mine, **arguments) if mine else {}
        return dict(sorted(replies.items()))


class Bench:
    """Makes contexts; the given labels count as the true ones."""

    def __init__(self, labels, *overrides: str, classes: int, groups: int = 1) -> None:
        sizes = [len(own) for own in labels]
        ends = np.cumsum(sizes)
        self.ids = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self.labels = [np.asarray(own, dtype=np.int64) for own in labels]
        self.world = FakeWorld(int(ends[-1]))
        self.classes = classes
        partition = f"data.partition={{kind: tasks, clients: {len(labels)}, groups: {groups}}}"
        self.config = load_config({}, [partition, *overrides])
        self.clean = (np.zeros(0, np.int64), np.zeros(0, np.int64))
        self.tasks = dict.fromkeys(range(len(labels)), tuple(range(classes)))
        self.artifacts: dict[str, np.ndarray] = {}
        self._records = [ClientRecord(k, self.ids[k], own) for k, own in enumerate(self.labels)]
        self._spec = SimpleNamespace(open=lambda: self.world)
        self.federation = LocalFederation(self._records, self._spec)

    def cut(self, cohorts) -> SplitFederation:
        """Return a new federation of these clients in these cohorts."""
        return SplitFederation(self._records, self._spec, cohorts)

    def round(self, number: int = 0, *, last: bool = False, stage: str = "train") -> RoundContext:
        given = dict(enumerate(self.labels))
        rounds = number + 1 if last else max(self.config.train.rounds, number + 2)
        return RoundContext(
            federation=self.federation,
            config=self.config,
            classes=self.classes,
            image_shape=(2, 2, 1),
            where=Where(stage, number, rounds),
            data=SimpleNamespace(clean=self.clean, test_classes=lambda: self.tasks),
            world=self.world,
            evaluator=Evaluator(given, given, np.zeros(len(given), int)),
            folder=SimpleNamespace(artifact=self.artifacts.__setitem__),
            entry={},
        )


@pytest.fixture
def bench() -> type[Bench]:
    """Return the class that makes a bench from the clients' labels and config overrides."""
    return Bench
