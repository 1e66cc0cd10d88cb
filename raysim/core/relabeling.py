"""Noisy label detection and correction by class subspaces (FB-NLL section IV, Procedure 2, Eq. 7).

Shapes: N samples, D dimensions, C classes, L directions per class. Label arrays come back as int64
in the namespace of the label array that was given; features may live elsewhere (on a GPU).

The client (user) and the server (PS) each run a part of Procedure 2, so its lines are functions of
their own; ``relabel`` runs them in one place, ``steps.correction`` in a federation. Line numbers
below are Procedure 2's. Additions to the paper: the guard ``min_class_size``, and a Phase 2 rank
that may differ from Phase 1's (section V allows it, line 19 does not show it).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device

from raysim.core.similarity import relevance
from raysim.core.spectra import Array, Spectrum, as_numpy, spectrum, truncate

TIE = 1e-12
"""Relative difference of squared projections below which rounding, not the data, decides."""


@dataclass(frozen=True, eq=False)
class ClassSubspaces:
    """The server's spectrum of every class (section IV): lambda_s^c and Q^c of its clean images."""

    spectra: tuple[Spectrum, ...]

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return len(self.spectra)

    @property
    def rank(self) -> int:
        """Number of directions that every class has."""
        return min(one.rank for one in self.spectra)

    @property
    def dimension(self) -> int:
        """Number of feature dimensions D."""
        return self.spectra[0].dimension

    def vectors(self, rank: int | None = None) -> Array:
        """Return Q_l^c, the first ``rank`` directions of every class (C, D, rank): the broadcast.

        Line 1.
        """
        rank = self.rank if rank is None else rank
        _check_rank(rank, self.rank)
        xp = array_namespace(self.spectra[0].vectors)
        return xp.stack([one.vectors[:, :rank] for one in self.spectra])


@dataclass(frozen=True, eq=False)
class Relabeling:
    """What Procedure 2 did to one client's labels."""

    labels: Array
    """New labels (N,)."""
    phase: Array
    """1 or 2 per sample (N,): the phase that wrote its label."""
    scores: Mapping[int, Array]
    """Averaged similarity to every class (C,) per local label (line 12); none for labels that the
    guard sent to Phase 2."""
    decided: Mapping[int, int | None]
    """Per local label the class that Phase 1 chose, or None where Phase 2 looked at samples."""


def class_subspaces(
    features: Array, labels: Array, rank: int, classes: int | None = None
) -> ClassSubspaces:
    """Return the spectrum of every class of the server's clean images (section IV).

    ``classes`` defaults to the largest label + 1. A class with fewer images than ``rank`` keeps
    fewer directions, with a warning.
    """
    given = _checked_labels(labels, features)
    if not 1 <= rank <= features.shape[1]:
        raise ValueError(
            f"rank must be in 1..{features.shape[1]}, the feature dimension, got {rank}; change it"
        )
    counts = _class_counts(given, classes)
    few = {label: int(count) for label, count in enumerate(counts) if count < rank}
    if few:
        warnings.warn(f"rank {rank} is capped for classes with few images: {few}", stacklevel=2)
    rows = [_rows_of(features, given, label) for label in range(len(counts))]
    return ClassSubspaces(tuple(_capped_spectrum(one, rank) for one in rows))


def class_spectra(
    features: Array, labels: Array, rank: int, *, min_class_size: int = 0
) -> dict[int, Spectrum]:
    """Return the spectrum of each local (perhaps noisy) label's samples (lines 3-5).

    With ``min_class_size`` above 0, labels with fewer than max(rank, min_class_size) samples are
    left out; with 0 all are in, their rank capped, with a warning, by their number of samples.
    """
    given = _checked_labels(labels, features)
    smallest = max(rank, min_class_size) if min_class_size > 0 else 1
    present, counts = np.unique(given, return_counts=True)
    return {
        int(label): spectrum(_rows_of(features, given, int(label)), rank)
        for label, count in zip(present, counts, strict=True)
        if count >= smallest
    }


def server_scores(subspaces: ClassSubspaces, vectors: Array, rank: int) -> Array:
    """Return r(c, c~) for all clean classes c (C,) from a client's eigenvectors (D, L) (line 9)."""
    _check_rank(rank, subspaces.rank)
    xp = array_namespace(subspaces.spectra[0].vectors)
    common = min(rank, int(vectors.shape[-1]))
    return xp.stack([relevance(one, vectors[..., :common]) for one in subspaces.spectra])


def client_scores(local: Spectrum, server_vectors: Array, rank: int) -> Array:
    """Return r(c~, c) for all clean classes c (C,), the reciprocal similarity (line 11).

    From the server's eigenvectors (C, D, L).
    """
    _check_rank(rank, int(server_vectors.shape[2]))
    return relevance(local, server_vectors[:, :, : min(rank, local.rank)])


def decide(scores: Array, threshold: float) -> int | None:
    """Return the one class whose averaged similarity reaches tau_sim, else None (lines 14-15)."""
    candidates = np.flatnonzero(as_numpy(scores) >= threshold)  # the set I, line 14
    return int(candidates[0]) if len(candidates) == 1 else None  # line 15


def project(features: Array, server_vectors: Array, labels: Array) -> Array:
    """Return for each sample z the class with the largest projection (Eq. 7, line 19).

    Phase 2, sample by sample. Q is orthonormal, so ||Q^T z|| is the norm of Q Q^T z. Of
    classes that tie, the sample's old label wins if it is one of them, else the smallest.
    """
    old = _checked_labels(labels, features)
    num_classes, dimension, rank = server_vectors.shape
    if features.shape[1] != dimension:
        raise ValueError(
            f"features must have the subspaces' dimension {dimension}, got {features.shape[1]}; "
            "use the same features for clients and server"
        )
    xp = array_namespace(features, server_vectors)
    columns = xp.reshape(xp.permute_dims(server_vectors, (1, 0, 2)), (dimension, -1))
    parts = xp.reshape(xp.astype(features, xp.float64) @ columns, (len(old), num_classes, rank))
    energy = as_numpy(xp.sum(parts * parts, axis=2))
    best = energy >= energy.max(axis=1, keepdims=True) * (1 - TIE)
    keeps = (best & (np.arange(num_classes) == old[:, None])).any(axis=1)
    return _labels_like(np.where(keeps, old, best.argmax(axis=1)), labels)


def apply_decisions(
    features: Array, labels: Array, decided: Mapping[int, int | None], server_vectors: Array
) -> tuple[Array, Array]:
    """Return new labels and the phase that wrote each (lines 16-21).

    All decisions are made from the given labels and written at once: no sample is relabelled twice.
    Phase 2 uses all columns of ``server_vectors`` (C, D, L2).
    """
    old = _checked_labels(labels, features)
    new, phase = old.copy(), np.full(len(old), 2, dtype=np.int64)
    for label, chosen in decided.items():
        if chosen is not None:
            new[old == label] = chosen  # Phase 1, line 16
            phase[old == label] = 1
    open_ids = np.flatnonzero(phase == 2)  # Phase 2, lines 17-21
    if len(open_ids) > 0:
        new[open_ids] = project(_take(features, open_ids), server_vectors, old[open_ids])
    return _labels_like(new, labels), _labels_like(phase, labels)


def relabel(
    features: Array,
    labels: Array,
    subspaces: ClassSubspaces,
    *,
    rank: int | None = None,
    projection_rank: int | None = None,
    threshold: float = 0.7,
    min_class_size: int = 20,
) -> Relabeling:
    """Return one client's corrected labels (Procedure 2).

    Parameters
    ----------
    features, labels
        The client's samples (N, D) and their given labels (N,).
    subspaces
        The server's clean classes.
    rank
        l, directions compared in Phase 1; None takes all that the subspaces have.
    projection_rank
        Directions projected on in Phase 2; None takes ``rank``, as line 19 does.
    threshold
        tau_sim, the averaged similarity that exactly one class must reach for Phase 1 to rename a
        local class.
    min_class_size
        Local classes below max(rank, min_class_size) go to Phase 2 (ours); 0 is the paper's rule.
    """
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"threshold must be in [0, 1], got {threshold}; similarities lie there")
    rank = subspaces.rank if rank is None else rank
    projection_rank = rank if projection_rank is None else projection_rank
    vectors = subspaces.vectors(max(rank, projection_rank))
    scores = {  # lines 7-13
        label: (server_scores(subspaces, local.vectors, rank) + client_scores(local, vectors, rank))
        / 2
        for label, local in class_spectra(
            features, labels, rank, min_class_size=min_class_size
        ).items()
    }
    decided: dict[int, int | None] = {int(label): None for label in np.unique(as_numpy(labels))}
    decided |= {label: decide(row, threshold) for label, row in scores.items()}
    new, phase = apply_decisions(features, labels, decided, vectors[:, :, :projection_rank])
    return Relabeling(new, phase, scores, decided)


def _capped_spectrum(features: Array, rank: int) -> Spectrum:
    """Return the spectrum with at most ``rank`` directions, without a second warning."""
    if features.shape[0] >= features.shape[1]:
        return spectrum(features, rank)
    every = spectrum(features)
    return truncate(every, min(rank, every.rank))


def _class_counts(labels: np.ndarray, classes: int | None) -> np.ndarray:
    """Return the number of clean images of every class; refuses a class without any."""
    if len(labels) == 0:
        raise ValueError("the server needs clean images, got none; raise their number per class")
    classes = int(labels.max()) + 1 if classes is None else classes
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(
            f"labels must be in 0..{classes - 1}, got {labels.min()}..{labels.max()}; "
            "change classes or the labels"
        )
    counts = np.bincount(labels, minlength=classes)
    if (counts == 0).any():
        raise ValueError(
            f"every class needs clean images, got none of class {int(np.argmin(counts))}; "
            "add some for it"
        )
    return counts


def _rows_of(features: Array, labels: np.ndarray, label: int) -> Array:
    return _take(features, np.flatnonzero(labels == label))


def _take(features: Array, ids: np.ndarray) -> Array:
    xp = array_namespace(features)
    return xp.take(features, xp.asarray(ids, device=device(features)), axis=0)


def _labels_like(labels: np.ndarray, given: Array) -> Array:
    xp = array_namespace(given)
    return xp.asarray(labels.astype(np.int64), device=device(given))


def _checked_labels(labels: Array, features: Array) -> np.ndarray:
    if features.ndim != 2:
        raise ValueError(
            f"features must be 2-D (samples, dimensions), got shape {tuple(features.shape)}; "
            "reshape them to one row per sample"
        )
    given = as_numpy(labels)
    if given.shape != (features.shape[0],) or given.dtype.kind not in "iu":
        raise ValueError(
            f"labels must be {features.shape[0]} integers, one per feature row, got shape "
            f"{given.shape} of {given.dtype}; pass one class id per sample"
        )
    return given.astype(np.int64)


def _check_rank(rank: int, available: int) -> None:
    if not 1 <= rank <= available:
        raise ValueError(
            f"rank must be in 1..{available}, the directions every class subspace has, got {rank}; "
            "lower it or give the server more clean images per class"
        )
