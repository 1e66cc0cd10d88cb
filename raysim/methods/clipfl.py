"""ClipFL: prune the clients whose models are seldom among the best (Morafah et al. 2025, Alg. 1).

Morafah, Chang, Chen and Lin, "Federated Learning Client Pruning for Noisy Labels", ACM TOMPECS
10(2), 2025. Also inside groups, as FB-NLL's tables use it, and after FB-NLL's label correction.

Deviations from the paper:
- Phase I merges the best m clients only (sections 4.1-4.2 and Fig. 3; line 13 writes all);
- m is half of a group's participants, Phase I a quarter of the rounds, unless set (FB-NLL: 20 of
  80 rounds, m not given; ClipFL's own study: m = 5, 80 of 120);
- the loss is the run's cross-entropy unless set; ClipFL's own study smooths labels by 0.1 at
  temperature 10, which divides every step by ten (FB-NLL names no loss);
- ties of the noise candidacy score go to the lower mean validation accuracy (the paper is silent);
- synthetic validation images come from a file (``validation.kind: file``): the paper's diffusion
  model is not part of raysim, and ``generated`` is only a Gaussian per class.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from raysim.core.spectra import spectrum
from raysim.errors import ConfigError, DataError
from raysim.methods.method import (
    METHODS,
    GroupsSettings,
    InGroups,
    Repair,
    no_clean_images,
    refuse_short,
    share_of_rounds,
)
from raysim.models.evaluation import score
from raysim.models.losses import PLAIN, SmoothedCrossEntropy
from raysim.models.training import TrainReport
from raysim.protocols import Client, ClientId, Context, Contribution, Handle, Stage, State, Tree
from raysim.seeding import stream
from raysim.settings import In, check, settings
from raysim.steps.correction import CorrectionSettings
from raysim.steps.group_training import (
    chosen_clients,
    count_uploads,
    evaluated,
    local_arguments,
    mean_loss,
    train_groups_by,
    with_initial,
)
from raysim.steps.local_training import (
    client_logits,
    contribution_of,
    current_labels,
    num_participants,
    trained_model,
)
from raysim.steps.server import group_model, members_by_group
from raysim.storage.labelled import read_labelled

VALIDATION = "validation/images"
"""Name of the stored images and labels, where they are not the server's clean ones."""
FORM = "np.savez(path, images=uint8 (N, H, W, C), labels=class numbers (N,))"
ROUNDING = 1e-9
"""A share of a count may be 28.999... in binary where it is 29."""


@settings
class ValidationSettings:
    """What clients' models are scored on."""

    kind: Literal["clean", "file", "generated"] = "clean"
    """clean: the server's clean images; file: images made elsewhere, such as those of ClipFL's
    diffusion model; generated: drawn from a Gaussian per class that is fitted to the clean images,
    a stand-in and not the paper's generator."""
    path: str | None = None
    """Of kind file: an npz with images, uint8 (N, H, W, C), and labels (N,)."""
    per_class: Annotated[int, In("[1, inf)", do="leave it out")] = 100  # ours; ClipFL: 1000
    """Of kind generated: images drawn of every class."""
    components: Annotated[int, In("[1, inf)", do="leave it out")] = 32  # ours
    """Of kind generated: dimensions of the space they are drawn in."""

    def __post_init__(self) -> None:
        if self.kind == "file":
            do = "name the npz file"
            check(self.path is not None, "path", "must be set with kind file", got=None, do=do)
        else:
            do = "set kind to file, or leave path out"
            check(self.path is None, "path", "needs kind file", got=self.path, do=do)


@METHODS.register("clipfl")
@settings
class ClipFl(InGroups):
    """ClipFL (Morafah et al. 2025): score clients on clean images, prune the worst, go on."""

    title: ClassVar[str] = "ClipFL"
    stateless: ClassVar[bool] = False

    score_rounds: Annotated[int | None, In("[1, inf)")] = None
    """T_pre, rounds of Phase I out of train.rounds; null: a quarter."""
    kept: Annotated[int | None, In("[1, inf)")] = None
    """m, clients merged per group and round of Phase I; null: the better half."""
    prune_rate: Annotated[
        float, In("[0, 1)", do="1 would prune everyone: leave some clients to train on, e.g. 0.5")
    ] = 0.5
    """p, share of each group that is dropped."""
    # FB-NLL's wording allows 0.5 too, see raysim/docs/sheets/clipfl.md, "ClipFL inside FB-NLL".
    post_fraction: Annotated[float, In("(0, 1]", do="try 1.0")] = 1.0
    """Share of the survivors that train in Phase III."""
    per_participation: bool = False
    """Divide scores by the rounds a client took part in (ours; the paper counts)."""
    weights: Literal["samples", "uniform"] = "samples"
    """How clients count in a mean."""
    loss: SmoothedCrossEntropy = PLAIN
    validation: ValidationSettings = ValidationSettings()

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse missing images to score on, too few rounds for two phases, and keeping all."""
        if self.validation.kind == "file":  # the size of its images is checked when it is used
            labelled_images(str(self.validation.path), classes)
        else:
            purpose = "scores every model on the server's clean images"
            no_clean_images(purpose)(config, self.title)
        InGroups.check(self, config, classes=classes, dimensions=dimensions)
        refuse_short(config, self.scored(config) + 1, "ClipFL's Phases I and III")
        clients = config.data.partition.clients
        taking_part = num_participants(clients, config.train.participation)
        if self.prune_rate and self.kept is not None and self.kept >= taking_part:
            raise ConfigError(
                f"method.kept is {self.kept}, but {taking_part} of {clients} clients take part in "
                "a round: nobody would ever be scored down; lower method.kept, or leave it out for "
                "the better half"
            )

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return Phase I, which ends with Phase II, and Phase III."""
        scored = self.scored(config)
        return (
            self.grouping_stage(config),
            Stage("score", scored, self.pre_pruning),
            Stage("train", config.train.rounds - scored, self.round),
        )

    def scored(self, config: Any) -> int:
        return share_of_rounds(config.train.rounds, self.score_rounds, 4)

    def local_training(self, context: Context) -> dict[str, Any]:
        """Return how clients count, and their loss unless it is plain cross-entropy."""
        server = replace(context.config.server, weights=self.weights)
        return {"server": server} if self.loss == PLAIN else {"server": server, "loss": self.loss}

    # ---- Phase I: pre-client pruning (lines 3-14) ----------------------------------------------

    def pre_pruning(self, context: Context, state: State) -> State:
        """Run a round of Phase I; the last one ends with Phase II."""
        state = state if state.models else with_initial(context, state)
        if self.validation.kind != "clean" and VALIDATION not in state.models:
            images = self.images_to_score_on(context)
            state = replace(state, models={**state.models, VALIDATION: images})
        state = self.score_and_merge(context, state, chosen_clients(context))  # line 4
        if context.last:
            state = self.prune(context, state)
            models = {name: h for name, h in state.models.items() if name != VALIDATION}
            state = replace(state, models=models)
        return evaluated(context, state)

    def score_and_merge(self, context: Context, state: State, chosen: Sequence[ClientId]) -> State:
        """Train ``chosen``, score their models, merge the best of each group, count the others.

        Scored on the server's clean images (D^val), unless the state holds others.
        """
        groups = {k: state.groups[k] for k in chosen}
        handles = {g: state.models[group_model(g)] for g in sorted(set(groups.values()))}
        how = self.local_training(context)
        shared = {**local_arguments(context), **how, "models": handles, "clean": context.clean}
        if VALIDATION in state.models:
            shared["validation"] = state.models[VALIDATION]
        each = {k: {"group": g} for k, g in groups.items()}
        scores = context.federation.map(train_and_score_task, on=chosen, each=each, **shared)
        context.sent("down", "model", sum(handles[g].nbytes for g in groups.values()))
        count_uploads(context, state, chosen)
        best: set[ClientId] = set()
        for members in members_by_group(groups):
            best |= {*best_clients(scores, members, self.kept)}
        state, _ = train_groups_by(  # line 13
            send_trained_task, context, state, sorted(best), counted=False, **how
        )
        context.record(loss=mean_loss(scores))
        counts = dict(state.values.get("candidacy", {}))
        for k, reply in scores.items():
            before = counts.get(str(k), {"score": 0, "rounds": 0, "accuracy": 0.0})
            counts[str(k)] = {
                "score": before["score"] + (k not in best),  # Eq. 4 and 5, lines 11 and 12
                "rounds": before["rounds"] + 1,
                "accuracy": before["accuracy"] + reply["accuracy"],
            }
        context.record(validation={str(k): reply["accuracy"] for k, reply in scores.items()})
        return replace(state, values={**state.values, "candidacy": counts})

    # ---- Phase II: client pruning (lines 15-17) ------------------------------------------------

    def prune(self, context: Context, state: State) -> State:
        """Drop the floor(p K) clients of highest noise candidacy score in each group, never all."""
        survivors: list[ClientId] = []
        for members in members_by_group(state.groups):
            order = self.cleanest_first(state, members)  # Eq. 6, line 15; here ascending
            dropped = min(math.floor(self.prune_rate * len(order) + ROUNDING), len(order) - 1)
            survivors += order[: len(order) - dropped]  # Eq. 7 and 8, lines 16 and 17
        pruned = sorted(set(state.groups) - set(survivors))
        context.observe_noisy(pruned, {k: self.candidacy(state, k)[0] for k in state.groups})
        return replace(state, values={**state.values, "survivors": sorted(survivors)})

    def cleanest_first(self, state: State, members: Sequence[ClientId]) -> list[ClientId]:
        """Return the members by their noise candidacy score, lowest first."""
        return sorted(members, key=lambda k: self.candidacy(state, k))

    def candidacy(self, state: State, k: ClientId) -> tuple[float, ...]:
        """Return the sort key of a client: its noise candidacy score (NCS), then what breaks ties.

        These are the higher mean validation accuracy, then the lower client. A client that never
        took part has score 0 and comes before all others that have it.
        """
        counts = state.values["candidacy"].get(str(k))
        if counts is None:
            return 0.0, -math.inf, k
        ncs = counts["score"] / counts["rounds"] if self.per_participation else counts["score"]
        return ncs, -counts["accuracy"] / counts["rounds"], k

    # ---- Phase III: post-client pruning (lines 18-24) ------------------------------------------

    def round(self, context: Context, state: State) -> State:
        """Run an ordinary round among the survivors, or the cleanest of them (lines 18-24)."""
        allowed = []
        for members in members_by_group({k: state.groups[k] for k in state.values["survivors"]}):
            order = self.cleanest_first(state, members)
            allowed += order[: math.ceil(self.post_fraction * len(members))]
        chosen, how = chosen_clients(context, sorted(allowed)), self.local_training(context)
        return evaluated(context, self.train_groups(context, state, chosen, **how)[0])

    # ---- the images to score on ----------------------------------------------------------------

    def images_to_score_on(self, context: Context) -> Handle:
        """Store validation images that are not the server's clean ones, and their labels."""
        how, federation = self.validation, context.federation
        if how.kind == "file":
            images, labels = labelled_images(str(how.path), context.classes)
            if images.shape[1:] != tuple(context.image_shape):
                raise DataError(
                    f"{how.path}: images must be (H, W, C) = {tuple(context.image_shape)}, as the "
                    f"dataset's, got {images.shape[1:]}; resize them"
                )
            digest = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
            context.record(validation_file={"images": len(labels), "sha256": digest})
            return federation.put({"images": context.prepared(images), "labels": labels})
        return federation.derive(
            drawn_images,
            images=context.server_images(),
            labels=context.clean[1],
            per_class=how.per_class,
            components=how.components,
            rng=stream(context.config.seed, "validation"),
        )


# ---- Phase I at the clients --------------------------------------------------------------------


def train_and_score_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, dict[str, float]]:
    """Train, keep the model for a while, reply with how it does on the server's images (line 8).

    The score is the server's work; it is done here because here the model is.
    """
    tree, report = trained_once(client, memory, arguments)
    if "validation" in arguments:
        images, labels = (arguments["validation"][name] for name in ("images", "labels"))
    else:
        ids, labels = arguments["clean"]
        images = client.world.images(ids)
    scored = score(client_logits(tree, images, arguments), labels)
    reply = {"loss": report.loss, "samples": report.samples}
    return memory, {**reply, "accuracy": scored.accuracy, "validation_loss": scored.loss}


def send_trained_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Reply with the model that was scored; trained again if this process lost it."""
    # Not declared stateless: another actor would have to train it again.
    tree, report = trained_once(client, memory, arguments)
    client.scratch.pop("scored", None)
    return memory, contribution_of(tree, report, arguments)


def trained_once(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, TrainReport]:
    """Return this round's model, from the client's cache where it is still there (lines 5-7)."""
    kept = client.scratch.get("scored")
    if kept is None or kept[0] != arguments["where"]:
        trained = trained_model(client, current_labels(client, memory), arguments)
        kept = client.scratch["scored"] = (arguments["where"], trained)
    tree, report = kept[1]
    return tree, report


def best_clients(
    scores: Mapping[ClientId, Mapping[str, float]], members: Sequence[ClientId], kept: int | None
) -> list[ClientId]:
    """Return the ``kept`` members (null: half) of highest validation accuracy (Eq. 2 and 3).

    Ties go to the lower validation loss, then to the lower client (ours: the paper is silent).
    """
    count = math.ceil(len(members) / 2) if kept is None else kept

    def rank(k: ClientId) -> tuple[float, float, int]:
        return -scores[k]["accuracy"], scores[k]["validation_loss"], k

    return sorted(members, key=rank)[:count]  # lines 9 and 10


# ---- validation images of a file (section 5.6: made by a diffusion model) ----------------------


def labelled_images(path: str, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the images (N, H, W, C) and labels (N,) of an npz; refuse what cannot be scored on."""
    if not Path(path).is_file():
        raise ConfigError(
            f"method.validation.path: there is no file {path}; write it as {FORM}, or use another "
            "method.validation.kind"
        )
    do = f"write it as {FORM}"
    images, labels = read_labelled(Path(path), ("images", "labels"), do, classes=classes)
    missing = sorted(set(range(classes)) - set(labels.tolist()))
    if missing:
        raise DataError(
            f"{path}: class {missing[0]} has no image ({len(missing)} of {classes} classes have "
            "none); add images of every class"
        )
    return images, labels


# ---- validation images drawn around the clean ones (ours) --------------------------------------


def drawn_images(
    *,
    images: np.ndarray,
    labels: np.ndarray,
    per_class: int,
    components: int,
    rng: np.random.Generator,
) -> Tree:
    """Return ``per_class`` new images for every class that ``images`` (N, ...) have, and labels.

    A stand-in where a generative model would be: what it draws are blurred blends of what it has
    seen. Every class has the mean of its images and all share the spread within classes, both in
    the ``components`` leading principal components; nothing leaves the range of the images. A
    class's draws are its mean where no class has two images.
    """
    rows = images.reshape(len(images), -1).astype(np.float64)
    center = rows.mean(axis=0)
    basis = spectrum(rows - center).vectors[:, :components]  # (pixels, components)
    codes = (rows - center) @ basis
    classes = np.unique(labels)
    means = np.stack([codes[labels == c].mean(axis=0) for c in classes])
    within = codes - means[np.searchsorted(classes, labels)]
    spread = within.T @ within / max(len(rows) - len(classes), 1)
    values, vectors = np.linalg.eigh(spread)
    noise = rng.normal(size=(len(classes), per_class, len(values)))
    moved = (noise * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    drawn = (means[:, None] + moved).reshape(-1, len(values)) @ basis.T + center
    drawn = drawn.clip(rows.min(), rows.max()).astype(images.dtype)
    return {
        "images": drawn.reshape(-1, *images.shape[1:]),
        "labels": np.repeat(classes, per_class),
    }


# ---- with FB-NLL's groups and label correction -------------------------------------------------


@METHODS.register("clipfl_fb_nll")
@settings
class ClipFlFbNll(ClipFl):
    """ClipFL + FB-NLL: FB-NLL's groups and label correction, then ClipFL inside the groups."""

    groups: GroupsSettings = GroupsSettings(kind="similarity")
    correction: CorrectionSettings = CorrectionSettings()
    correct_before: Literal["score", "train"] = "score"  # ours: the paper does not say where
    """The stage in front of which labels are repaired."""

    @property
    def repair(self) -> Repair:
        return Repair(self.correct_before, self.correction)
