"""The only holder of the truth.

Scores groups and corrected labels for the record, never for a method; the formulas are in
raysim/docs/sheets/metrics.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raysim.core.metrics import (
    adjusted_rand,
    auroc,
    clean_selection,
    client_noise,
    confusion,
    correction_report,
    correlation,
    label_counts,
    noise_detection,
    noise_rate,
    normalized_mutual_info,
    phase_report,
    purity,
)
from raysim.protocols import ClientId, GroupId

Labels = Mapping[ClientId, np.ndarray]
"""Labels of clients."""


class Evaluator:
    """True labels and true tasks, in the driver."""

    def __init__(
        self,
        true: Labels,
        given: Labels,
        task_of: Any,
    ) -> None:
        self._true, self._given = dict(true), dict(given)
        self._task_of = np.asarray(task_of)
        self.repaired: Labels | None = None
        """Labels after FB-NLL's correction, once they are known."""

    def noise(self) -> float | None:
        """Share of given labels that are wrong, over all clients."""
        return noise_rate(self._all(self._true), self._all(self._given))

    def groups(self, groups: Mapping[ClientId, GroupId]) -> dict[str, float]:
        found = np.array([groups[k] for k in sorted(groups)])
        tasks = self._task_of[sorted(groups)]
        return {
            "ari": adjusted_rand(found, tasks),
            "nmi": normalized_mutual_info(found, tasks),
            "purity": purity(found, tasks),
        }

    def labels(self, corrected: Labels) -> dict[str, Any] | None:
        """Score corrected labels; clients not named keep their given ones."""
        new = {k: corrected.get(k, given) for k, given in self._given.items()}
        return correction_report(self._all(self._true), self._all(self._given), self._all(new))

    def phases(
        self,
        before: Labels,
        after: Labels,
        decided: Mapping[ClientId, Mapping[int, int | None]],
    ) -> dict[str, int]:
        """Score the two phases of FB-NLL's correction, summed over the clients."""
        found = [
            phase_report(self._true[k], before[k], after[k], own) for k, own in decided.items()
        ]
        return {name: sum(own[name] for own in found) for name in found[0]} if found else {}

    def kept(self, corrected: Labels, labels: Labels | None = None) -> dict[ClientId, np.ndarray]:
        """Return a mask of the labels that a correction kept, and so takes for right."""
        before = labels or self._given
        return {k: new == before[k] for k, new in corrected.items()}

    def by_client(self, flat: np.ndarray) -> dict[ClientId, np.ndarray]:
        """Cut the labels of all clients, one after another, into those of each."""
        ids = sorted(self._given)
        ends = np.cumsum([len(self._given[k]) for k in ids])
        return dict(zip(ids, np.split(flat, ends[:-1]), strict=True))

    def selection(
        self, selected: Mapping[ClientId, np.ndarray], labels: Labels | None = None
    ) -> tuple[dict[str, float | None], np.ndarray] | None:
        """Score samples taken for rightly labelled.

        ``labels`` are those that were judged, default the given ones. Return the means over the
        clients named, and every client's F-score (K,), NaN where it is undefined.
        """
        judged = labels or self._given
        found = {k: clean_selection(self._true[k], judged[k], mask) for k, mask in selected.items()}
        scores = [found.get(k, {}).get("f_score") for k in sorted(self._true)]
        known = np.array([np.nan if score is None else score for score in scores])
        return _means(list(found.values())), known

    def detection(
        self, selected: Mapping[ClientId, np.ndarray], labels: Labels | None = None
    ) -> dict[str, Any] | None:
        """Score how well the samples that were not taken are those with wrong labels.

        Also count the clients of which no sample was taken.
        """
        judged = labels or self._given
        found = [noise_detection(self._true[k], judged[k], mask) for k, mask in selected.items()]
        return {**_means(found), "empty": sum(not mask.any() for mask in selected.values())}

    def arrays(
        self, what: str, classes: int, labels: Labels | None = None
    ) -> dict[str, np.ndarray]:
        """Return what reports show of labels, by name; ``labels`` default to the given ones.

        Counts per client (K, C), confusion with the truth (C, C), share of wrong ones (K,).
        """
        new = {k: (labels or {}).get(k, given) for k, given in self._given.items()}
        ids = sorted(new)
        own = [new[k] for k in ids]
        return {
            f"labels_{what}": label_counts(own, classes),
            f"confusion_{what}": confusion(self._all(self._true), self._all(new), classes),
            f"client_noise_{what}": client_noise([self._true[k] for k in ids], own),
        }

    def true_counts(self, classes: int) -> np.ndarray | None:
        """Return how many samples of each class every client holds (K, C)."""
        return label_counts([self._true[k] for k in sorted(self._true)], classes)

    def noisy_clients(
        self,
        found: Sequence[ClientId],
        scores: Mapping[ClientId, float] | None = None,
        levels: Mapping[ClientId, float] | None = None,
        *,
        labels: Labels | None = None,
    ) -> dict[str, float | None]:
        """Score clients taken for noisy; null where it is undefined.

        With ``scores``, higher for those that look noisier, also their AUROC; with ``levels``,
        estimated shares of wrong labels, their correlation with the true ones. ``labels`` are those
        that were judged, default the given ones.
        """
        judged_labels = labels or self._given
        noisy = {k for k in self._true if (self._true[k] != judged_labels[k]).any()}
        hits = len(noisy & set(found))
        precision = hits / len(found) if found else None
        recall = hits / len(noisy) if noisy else None
        total = len(found) + len(noisy)
        f1 = 2 * hits / total if total else None
        judged = {"precision": precision, "recall": recall, "f1": f1}
        if scores is not None:
            judged["auroc"] = auroc([k in noisy for k in scores], [*scores.values()])
        if levels is not None:
            both = self._true, judged_labels
            true = client_noise(*([own[k] for k in levels] for own in both))
            known = ~np.isnan(true)
            judged["correlation"] = correlation(np.array([*levels.values()])[known], true[known])
        return judged

    def tasks(self) -> dict[ClientId, GroupId]:
        """Return the true group of every client: a declared privilege of the optimum baseline."""
        return {k: int(self._task_of[k]) for k in sorted(self._true)}

    def clean(self, labels: Labels | None = None) -> dict[ClientId, np.ndarray]:
        """Return which labels (default: the given ones) are right: a privilege of the oracle."""
        judged = labels or self._given
        return {k: self._true[k] == judged[k] for k in sorted(judged)}

    @staticmethod
    def _all(labels: Labels) -> np.ndarray:
        return np.concatenate([labels[k] for k in sorted(labels)])


def _means(scores: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Return the mean of every score over those that have it."""
    means: dict[str, float | None] = {}
    for name in ("precision", "recall", "f_score"):
        known = [x for score in scores if (x := score[name]) is not None]
        means[name] = float(np.mean(known)) if known else None
    return means


class BlindEvaluator(Evaluator):
    """For data whose true labels nobody knows: what needs them is left out, never invented."""

    def __init__(self, given: Labels, task_of: Any, *, knows_tasks: bool) -> None:
        super().__init__(given, given, task_of)
        self._knows_tasks = knows_tasks

    def _unknown(self, *_: Any, **__: Any) -> None:
        """Return nothing: this needs the true labels."""

    noise = labels = selection = detection = true_counts = _unknown

    def groups(self, groups: Mapping[ClientId, GroupId]) -> dict[str, float]:
        """Score a grouping against the tasks where they are known."""
        return super().groups(groups) if self._knows_tasks else {}

    def phases(self, *_: Any) -> dict[str, int]:
        return {}

    def noisy_clients(self, *_: Any, **__: Any) -> dict[str, float | None]:
        return {}

    def arrays(
        self, what: str, classes: int, labels: Labels | None = None
    ) -> dict[str, np.ndarray]:
        """Return the counts per client alone."""
        name = f"labels_{what}"
        return {name: super().arrays(what, classes, labels)[name]}
