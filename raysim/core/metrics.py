"""Scores of groupings, labels, samples and clients against the truth.

Definitions: raysim/docs/sheets/metrics.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike


def adjusted_rand(a: ArrayLike, b: ArrayLike) -> float:
    """Return the adjusted Rand index of two groupings; 1 means the same groups."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(*_pair(a, b)))


def normalized_mutual_info(a: ArrayLike, b: ArrayLike) -> float:
    """Return the mutual information of two groupings over the mean of their entropies."""
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(*_pair(a, b)))


def purity(groups: ArrayLike, tasks: ArrayLike) -> float:
    """Return the share of clients whose task is the most common one of their group."""
    rows, columns = (np.unique(one, return_inverse=True)[1] for one in _pair(groups, tasks))
    table = np.zeros((rows.max() + 1, columns.max() + 1), dtype=np.int64)
    np.add.at(table, (rows, columns), 1)
    return float(table.max(axis=1).sum() / table.sum())


def noise_rate(true: ArrayLike, given: ArrayLike) -> float:
    """Return the share of given labels that are wrong."""
    expected, found = _pair(true, given)
    return float(np.mean(expected != found))


def correction_report(
    true: ArrayLike, given: ArrayLike, corrected: ArrayLike
) -> dict[str, float | None]:
    """Return what a correction did; a rate over no samples is None.

    Keys: ``noise_before``, ``noise_after``, ``precision`` (of the changed labels, how many are
    right now), ``recall`` (of the wrong ones, how many are right now), ``harm_rate`` (of the right
    ones, how many are wrong now).
    """
    truth, before = _pair(true, given)
    _, after = _pair(true, corrected)
    was_wrong, is_right = before != truth, after == truth
    return {
        "noise_before": float(was_wrong.mean()),
        "noise_after": float((~is_right).mean()),
        "precision": _share(is_right, among=after != before),
        "recall": _share(is_right, among=was_wrong),
        "harm_rate": _share(~is_right, among=~was_wrong),
    }


def clean_selection(
    true: ArrayLike, given: ArrayLike, selected: ArrayLike
) -> dict[str, float | None]:
    """Return how well the ``selected`` samples are those with a right label.

    Keys: ``precision`` and ``recall`` (FedRN's LP and LR, section 5.3) and their harmonic mean
    ``f_score`` (FedFixer's F-score as its code computes it; raysim/docs/sheets/fedfixer.md). None
    where a rate is over no samples.
    """
    return _detected(np.asarray(selected, dtype=bool), np.asarray(true) == np.asarray(given))


def noise_detection(
    true: ArrayLike, given: ArrayLike, selected: ArrayLike
) -> dict[str, float | None]:
    """Return how well the samples that are not ``selected`` are those with a wrong label.

    The keys are the same; for a client without wrong labels only the precision is defined.
    """
    return _detected(~np.asarray(selected, dtype=bool), np.asarray(true) != np.asarray(given))


def phase_report(
    true: np.ndarray, before: np.ndarray, after: np.ndarray, decided: Mapping[int, int | None]
) -> dict[str, int]:
    """Return what the phases of FB-NLL's correction did to one client's labels, as counts.

    ``decided`` says which class a local class was renamed to (Phase 1), None for those whose
    samples were judged one by one (Phase 2). A renaming is right if it names the most common true
    class.
    """
    renamed = {label: new for label, new in decided.items() if new is not None}
    most = {label: np.bincount(true[before == label]).argmax() for label in renamed}
    one_by_one = ~np.isin(before, list(renamed))
    truth, old, new = true[one_by_one], before[one_by_one], after[one_by_one]
    return {
        "phase1_right": sum(int(most[label] == new) for label, new in renamed.items()),
        "phase2_samples": len(truth),
        "phase2_wrong_before": int((old != truth).sum()),
        "phase2_wrong_after": int((new != truth).sum()),
        "phase2_spoiled": int(((old == truth) & (new != truth)).sum()),
    }


def correlation(a: ArrayLike, b: ArrayLike) -> float | None:
    """Return Pearson's correlation of two vectors; None where one of them is constant."""
    first, second = (one.astype(np.float64) for one in _pair(a, b))
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def auroc(is_positive: ArrayLike, scores: ArrayLike) -> float | None:
    """Return how often a positive has a higher score than a negative (area under the ROC curve).

    Ties count half; None where there is no such pair.
    """
    from sklearn.metrics import roc_auc_score

    positive, values = _pair(is_positive, scores)
    if positive.all() or not positive.any():
        return None
    return float(roc_auc_score(positive, values))


def label_counts(labels: Sequence[np.ndarray], classes: int) -> np.ndarray:
    """Return how often each label occurs at each client, (K, C)."""
    return np.stack([np.bincount(own, minlength=classes) for own in labels])


def client_noise(true: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> np.ndarray:
    """Return the share of wrong labels per client (K,), NaN for one without samples."""
    pairs = zip(true, labels, strict=True)
    return np.array([np.mean(own != found) if len(own) else np.nan for own, found in pairs])


def confusion(true: ArrayLike, labels: ArrayLike, classes: int) -> np.ndarray:
    """Return counts (C, C): rows are true classes, columns the labels."""
    truth, found = _pair(true, labels)
    return np.bincount(truth * classes + found, minlength=classes**2).reshape(classes, classes)


def _detected(found: np.ndarray, wanted: np.ndarray) -> dict[str, float | None]:
    """Return precision, recall and their harmonic mean; None where a rate is over no samples."""
    precision, recall = _share(wanted, among=found), _share(found, among=wanted)
    if precision is None or recall is None:
        return {"precision": precision, "recall": recall, "f_score": None}
    total = precision + recall
    f_score = 2 * precision * recall / total if total else 0.0
    return {"precision": precision, "recall": recall, "f_score": f_score}


def _share(claim: np.ndarray, *, among: np.ndarray) -> float | None:
    return float(claim[among].mean()) if among.any() else None


def _pair(a: ArrayLike, b: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.asarray(a), np.asarray(b)
    if first.ndim != 1 or first.shape != second.shape or first.size == 0:
        raise ValueError(
            f"labels must be two non-empty vectors of one length, got shapes {first.shape} and "
            f"{second.shape}; pass one label per client or sample in both"
        )
    return first, second
