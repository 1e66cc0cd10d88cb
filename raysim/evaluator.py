"""The only holder of the truth.

Scores groups and corrected labels for the record, never for a method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raysim.core.metrics import adjusted_rand, correction_report, noise_rate, purity
from raysim.protocols import ClientId, GroupId


class Evaluator:
    """True labels and true tasks, in the driver."""

    def __init__(
        self,
        true: Mapping[ClientId, np.ndarray],
        given: Mapping[ClientId, np.ndarray],
        task_of: Any,
    ) -> None:
        self._true, self._given = dict(true), dict(given)
        self._task_of = np.asarray(task_of)

    def noise(self) -> float:
        """Share of given labels that are wrong, over all clients."""
        return noise_rate(self._all(self._true), self._all(self._given))

    def groups(self, groups: Mapping[ClientId, GroupId]) -> dict[str, float]:
        """Score a grouping against the tasks."""
        found = np.array([groups[k] for k in sorted(groups)])
        tasks = self._task_of[sorted(groups)]
        return {"ari": adjusted_rand(found, tasks), "purity": purity(found, tasks)}

    def labels(self, corrected: Mapping[ClientId, np.ndarray]) -> dict[str, Any]:
        """Score corrected labels (metrics.md section 3).

        Clients not named keep their given ones.
        """
        new = {k: corrected.get(k, given) for k, given in self._given.items()}
        return correction_report(self._all(self._true), self._all(self._given), self._all(new))

    def noisy_clients(self, found: Sequence[ClientId]) -> dict[str, float | None]:
        """Score clients taken for noisy (metrics.md section 4); null where it is undefined."""
        noisy = {k for k in self._true if (self._true[k] != self._given[k]).any()}
        hits = len(noisy & set(found))
        precision = hits / len(found) if found else None
        recall = hits / len(noisy) if noisy else None
        total = len(found) + len(noisy)
        return {"precision": precision, "recall": recall, "f1": 2 * hits / total if total else None}

    def tasks(self) -> dict[ClientId, GroupId]:
        """Return the true group of every client: a declared privilege of the optimum baseline."""
        return {k: int(self._task_of[k]) for k in sorted(self._true)}

    @staticmethod
    def _all(labels: Mapping[ClientId, np.ndarray]) -> np.ndarray:
        return np.concatenate([labels[k] for k in sorted(labels)])
