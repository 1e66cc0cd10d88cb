"""Noisy label detection and correction in a federation: FB-NLL Procedure 2 (Eq. 7).

Algorithm 1, line 20. Once, before training, against the server's clean class subspaces. Line
numbers below are Procedure 2's; what each computes is in ``core.relabeling``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from raysim.core.calibration import RANKS, calibrate
from raysim.core.relabeling import (
    ClassSubspaces,
    apply_decisions,
    class_spectra,
    class_subspaces,
    client_scores,
    decide,
    server_scores,
)
from raysim.errors import ConfigError
from raysim.protocols import Client, Context, State, Step, Tree
from raysim.seeding import stream
from raysim.settings import In, settings
from raysim.steps.arrays import on_device, to_numpy
from raysim.steps.local_training import current_labels
from raysim.steps.relevance import WIRE

CHUNK = 1000
"""Clients whose class eigenvectors are at the server at the same time."""


@settings
class CorrectionSettings:
    """The knobs of Procedure 2.

    The paper gives no value, so the server calibrates what is left null.
    """

    rank: Annotated[int | None, In("[1, inf)")] = None
    """l, eigenvectors per class in Phase 1."""
    projection_rank: Annotated[int | None, In("[1, inf)")] = None
    """l2, eigenvectors per class in Phase 2."""
    threshold: Annotated[float | None, In("(0, 1]")] = None
    """tau_sim, similarity from which a whole local class is renamed."""
    min_class_size: Annotated[int, In("[0, inf)")] = 20  # ours: smaller classes go to Phase 2
    """Smallest local class that Phase 1 may decide, at least l; 0 is the paper's literal rule."""

    def check(self, config: Any, dimension: int, *, at: str = "method.correction") -> None:
        """Refuse a missing clean set and ranks that the clean set or the features cannot carry.

        ``at`` is where these settings are in the config, for the message.
        """
        per_class = config.data.server.per_class
        if config.data.partition.choice_name != "file" and per_class < 1:
            raise ConfigError(
                f"data.server.per_class is {per_class}, but label correction needs clean images of "
                "every class at the server; raise data.server.per_class or use a method without it"
            )
        calibrates = None in (self.rank, self.projection_rank, self.threshold)
        if calibrates and per_class == 1:
            raise ConfigError(
                "data.server.per_class is 1, but calibration halves the clean images of a class; "
                f"raise data.server.per_class, or set {at}.rank, projection_rank and threshold"
            )
        for name in ("rank", "projection_rank"):
            value = getattr(self, name)
            if value is not None and value > dimension:
                raise ConfigError(
                    f"{at}.{name} is {value}, above the feature dimension {dimension}; "
                    f"lower {at}.{name} or choose larger data.correction_features"
                )
            if value is not None and value > per_class > 0:
                raise ConfigError(
                    f"{at}.{name} is {value}, but {per_class} clean images per class "
                    f"span at most {per_class} directions; lower it or raise data.server.per_class"
                )


@settings
class CorrectSettings:
    """FB-NLL's label correction in front of a stage of any method."""

    before: str | None = None
    """Stage in front of which labels are repaired (FedRN: warmup or train); null: no repair."""
    how: CorrectionSettings = CorrectionSettings()


def correct_labels(how: CorrectionSettings) -> Step:
    """Return the step that corrects every client's labels once (Algorithm 1, lines 19-20)."""

    def step(context: Context, state: State) -> State:
        clean = {"features": context.server_features("correction"), "labels": context.clean[1]}
        handle = context.federation.put(clean)
        knobs = context.federation.serve(
            choose_knobs, clean=handle, how=how, seed=context.config.seed
        )
        shared = {"arrays": context.config.arrays, **knobs}
        reference = context.federation.serve(reference_vectors, clean=handle, **shared)  # line 1
        subspaces = context.federation.put({"vectors": reference})
        clients = context.federation.clients
        context.sent("down", "class subspaces", len(clients) * reference.nbytes)
        replies: dict[int, Any] = {}
        for start in range(0, len(clients), CHUNK):
            part = clients[start : start + CHUNK]
            replies |= _correct(context, part, clean=handle, subspaces=subspaces, shared=shared)
        _observe(context, replies, knobs)
        return state

    return step


def _correct(
    context: Context, part: Sequence[int], *, clean: Any, subspaces: Any, shared: Mapping[str, Any]
) -> dict[int, Any]:
    federation = context.federation
    uploads = federation.map(class_vectors_task, on=part, **shared)  # lines 4-6
    for vectors in uploads.values():
        context.sent("up", "class eigenvectors", sum(v.nbytes for v in vectors.values()))
    scores = federation.serve(score_uploads, clean=clean, uploads=uploads, **shared)  # lines 9-10
    for by_class in scores.values():
        context.sent("down", "class scores", sum(s.nbytes for s in by_class.values()))
    each = {k: {"scores": scores[k]} for k in part}
    return federation.map(relabel_task, on=part, each=each, subspaces=subspaces, **shared)


def choose_knobs(*, clean: Tree, how: CorrectionSettings, seed: int) -> dict[str, Any]:
    """Return l, l2, tau_sim: as set, or calibrated on the server's own clean images.

    tau_sim belongs to l: where l is set, the threshold is found at that rank, or at half of the
    smallest clean class if l is above it, since calibration compares halves.
    """
    knobs = {
        "rank": how.rank,
        "projection_rank": how.projection_rank,
        "threshold": how.threshold,
        "min_class_size": how.min_class_size,
    }
    if None in knobs.values():
        rng = stream(seed, "calibration")
        ranks = RANKS if how.rank is None else (how.rank,)
        calibration = calibrate(clean["features"], clean["labels"], rng, ranks=ranks)
        for name in ("rank", "projection_rank", "threshold"):
            knobs[name] = getattr(calibration, name) if knobs[name] is None else knobs[name]
    return knobs


def reference_vectors(
    *, clean: Tree, rank: int, projection_rank: int, arrays: Any, **_: Any
) -> np.ndarray:
    """Return the class subspaces Q_l (C, D, max(l, l2)) that the server sends to all (line 1)."""
    return to_numpy(_subspaces(clean, max(rank, projection_rank), arrays).vectors()).astype(WIRE)


def score_uploads(
    *,
    clean: Tree,
    uploads: Mapping[int, Mapping[int, np.ndarray]],
    rank: int,
    arrays: Any,
    **_: Any,
) -> dict[int, dict[int, np.ndarray]]:
    """Return r(c, c~) of every uploaded class c~ with every clean class c (lines 9-10)."""
    subspaces = _subspaces(clean, rank, arrays)
    places = [(k, c) for k, own in uploads.items() for c in own]
    widths = np.array([uploads[k][c].shape[1] for k, c in places])
    scores: dict[int, dict[int, np.ndarray]] = {k: {} for k in uploads}
    for width in np.unique(widths):  # classes with few samples have fewer directions
        same = [places[i] for i in np.flatnonzero(widths == width)]
        rows = np.stack([uploads[k][c].T for k, c in same])  # (J, L, D): one product per class
        stacked = on_device(rows.astype(np.float64), arrays)
        r = to_numpy(server_scores(subspaces, stacked.swapaxes(1, 2), subspaces.rank))  # line 9
        for (k, c), column in zip(same, r.T.astype(WIRE), strict=True):
            scores[k][c] = column
    return scores


def class_vectors_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, dict[int, np.ndarray]]:
    """Reply with the eigenvectors of every local (perhaps noisy) class (lines 2-6)."""
    spectra = _local_spectra(client, memory, arguments)
    return memory, {c: to_numpy(s.vectors).astype(WIRE) for c, s in spectra.items()}


def relabel_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, dict[str, Any]]:
    """Reply with the new labels: decide every local class, then write all at once (lines 11-21)."""
    before = current_labels(client, memory)
    features, labels = _features_and_labels(client, memory, arguments)
    vectors = on_device(arguments["subspaces"]["vectors"].astype(np.float64), arguments["arrays"])
    width = int(vectors.shape[2])
    decided: dict[int, int | None] = dict.fromkeys(np.unique(before).tolist())
    for c, own in _local_spectra(client, memory, arguments).items():
        reciprocal = to_numpy(client_scores(own, vectors, min(arguments["rank"], width)))  # line 11
        averaged = (arguments["scores"][c].astype(np.float64) + reciprocal) / 2  # lines 7-13
        decided[c] = decide(averaged, arguments["threshold"])  # lines 14-15
    richer = vectors[:, :, : min(arguments["projection_rank"], width)]
    corrected, _ = apply_decisions(features, labels, decided, richer)  # lines 16-21
    new = to_numpy(corrected)
    client.scratch.pop("class spectra", None)  # no longer needed: C x D x D numbers per client
    return {**memory, "labels": new}, {"before": before, "labels": new, "decided": decided}


def _observe(context: Context, replies: Mapping[int, Any], knobs: Mapping[str, Any]) -> None:
    before, after, decided = (
        {k: reply[name] for k, reply in replies.items()} for name in ("before", "labels", "decided")
    )
    context.observe_repair(before, after, decided)
    renamed = sum(c is not None for own in decided.values() for c in own.values())
    total = sum(len(own) for own in decided.values())
    context.record(
        correction={**knobs, "phase1_classes": renamed, "phase2_classes": total - renamed}
    )


def _features_and_labels(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Any, Any]:
    features = client.world.features("correction", client.sample_ids)
    arrays = arguments["arrays"]
    return on_device(features, arrays), on_device(current_labels(client, memory), arrays)


def _local_spectra(client: Client, memory: Tree, arguments: Mapping[str, Any]) -> dict[int, Any]:
    """Return the spectra of the local classes, computed once per process."""
    if "class spectra" not in client.scratch:
        features, labels = _features_and_labels(client, memory, arguments)
        client.scratch["class spectra"] = class_spectra(
            features, labels, arguments["rank"], min_class_size=arguments["min_class_size"]
        )
    return client.scratch["class spectra"]


def _subspaces(clean: Tree, rank: int, arrays: Any) -> ClassSubspaces:
    features, labels = on_device(clean["features"], arrays), on_device(clean["labels"], arrays)
    return class_subspaces(features, labels, rank)
