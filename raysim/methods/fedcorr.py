"""FedCorr: find noisy clients, repair, fine-tune on clean ones, train on all (Xu et al. 2022).

"FedCorr: Multi-Stage Federated Learning for Label Noise Correction", CVPR 2022; stages and steps
are numbered as in raysim/docs/sheets/fedcorr.md. Also inside groups, as FB-NLL's tables use it, and
with FB-NLL's label correction between stages.

Deviations from the paper:
- the proximal term is the norm itself, as in the released code, not its square (``squared``);
- losses are true cross-entropies; the released code takes softmax outputs for logits
  (``double_softmax``);
- LID, losses and predictions are computed on images as they are, not augmented;
- a sweep over all clients counts as one round of train.rounds (``sweep_rounds``; FB-NLL: K);
- local training is that of the train section (``local``): FB-NLL states both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from raysim.core.threads import one_thread
from raysim.errors import ConfigError
from raysim.methods.method import (
    METHODS,
    GroupsSettings,
    InGroups,
    Repair,
    refuse_short,
    share_of_rounds,
)
from raysim.models.evaluation import sample_losses
from raysim.models.losses import PLAIN, SmoothedCrossEntropy
from raysim.protocols import (
    Client,
    ClientId,
    Context,
    Contribution,
    OwnModels,
    Stage,
    State,
    Tree,
    stateless,
)
from raysim.seeding import stream
from raysim.settings import In, settings
from raysim.steps.correction import CorrectionSettings
from raysim.steps.group_training import chosen_clients, evaluated, mean_loss, train_groups_by
from raysim.steps.local_training import (
    client_logits,
    contribution_of,
    current_labels,
    participants,
    trained_model,
)
from raysim.steps.server import SCALAR_BYTES, group_model, members_by_group

if TYPE_CHECKING:
    import torch

ROUNDING = 1e-9
"""Added before rounding down: 200 * 0.29 * 0.5 is 28.999... in binary and must count as 29."""


@METHODS.register("fedcorr")
@settings
class FedCorr(InGroups):
    """FedCorr (Xu et al. 2022): noisy clients by LID, labels by confidence, three stages."""

    stateless: ClassVar[bool] = False
    iterations: Annotated[int, In("[1, inf)", do="try 1")] = 2  # FB-NLL; 5 on CIFAR-10 in FedCorr
    """T1, sweeps of stage 1."""
    sweep_rounds: Annotated[int, In("[1, inf)", do="try 1")] = 1
    """Rounds of train.rounds that a sweep counts as."""
    finetune_rounds: Annotated[int | None, In("[1, inf)")] = None
    """T2, rounds of stage 2; null: one in eight of train.rounds (FB-NLL: 10 of 80)."""
    sweep_fraction: Annotated[float, In("[0, 1]")] = 0.0
    """Share of a group that trains at a time in stage 1; 0: one client after another."""
    relabel_ratio: Annotated[float, In("[0, 1]")] = 0.5
    """pi, share of the estimated wrong labels that stage 1 may replace."""
    confidence: Annotated[float, In("[0, 1]")] = 0.5
    """theta, probability above which a predicted label is taken."""
    clean_level: Annotated[float, In("[0, 1]")] = 0.1
    """kappa, estimated noise up to which a client counts as clean."""
    neighbours: Annotated[int, In("[2, inf)", do="20 is FedCorr's")] = 20
    """k of the local intrinsic dimension."""
    proximal: Annotated[float, In("[0, inf)")] = 5.0
    """beta, strength of the pull to the received model, times the estimated noise; stage 1."""
    squared: bool = False
    double_softmax: bool = False
    mixup: Annotated[float, In("[0, inf)")] = 1.0
    """a of Beta(a, a); 0: off, as in FedFixer's runs."""
    weights: Literal["samples", "uniform"] = "samples"
    """How clients count in a mean."""
    loss: SmoothedCrossEntropy = PLAIN
    """Cross-entropy; ClipFL's study may have smoothed labels by 0.1, see
    raysim/docs/sheets/fedcorr.md."""
    local: Literal["config", "original"] = "config"
    """config: the train section; original: SGD, lr 0.03, momentum 0.5, batch 10, 5 epochs."""

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse a budget that leaves nothing for stage 3, and FedNova beside a pull, too."""
        InGroups.check(self, config, classes=classes, dimensions=dimensions)
        # Of one client at a time FedNova's step is its model, however many steps it counts.
        if config.server.optimizer == "fednova" and self.proximal and self.sweep_fraction:
            raise ConfigError(
                f"server.optimizer is fednova and method.proximal is {self.proximal:g}; its count "
                "of local steps holds without a proximal term: set method.proximal to 0, or "
                "method.sweep_fraction to 0"
            )
        swept = self.iterations * self.sweep_rounds
        refuse_short(config, swept + self.finetuned(config) + 1, "FedCorr's three stages")

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return stages 1, 2 and 3."""
        finetune = self.finetuned(config)
        usual = config.train.rounds - self.iterations * self.sweep_rounds - finetune
        return (
            self.grouping_stage(config),
            Stage("identify", self.iterations, self.identify),
            Stage("finetune", finetune, self.finetune),
            Stage("train", usual, self.round),
        )

    def finetuned(self, config: Any) -> int:
        return share_of_rounds(config.train.rounds, self.finetune_rounds, 8)

    def identify(self, context: Context, state: State) -> State:
        """Run an iteration of stage 1, pre-processing."""
        state = self.sweep(context, state)
        state = find_noisy_clients(context, state)
        state = self.relabel_noisy_clients(context, state, ratio=self.relabel_ratio)
        return evaluated(context, state)

    def finetune(self, context: Context, state: State) -> State:
        """Run a round of stage 2, fine-tuning; the last ends with a look at all labels."""
        chosen = self.clean_participants(context, state)
        state, _ = self.train_groups(context, state, chosen, **self.local_training(context))
        if context.last:
            state = self.relabel_noisy_clients(context, state, ratio=None)
        return evaluated(context, state)

    def round(self, context: Context, state: State) -> State:
        """Run a round of stage 3, usual federated learning."""
        chosen, how = chosen_clients(context), self.local_training(context)
        return evaluated(context, self.train_groups(context, state, chosen, **how)[0])

    def local_training(self, context: Context) -> dict[str, Any]:
        """Return how clients train and count."""
        train = replace(context.config.train, mixup=self.mixup)
        if self.local == "original":  # of FedCorr's CIFAR-10 runs
            sgd = {"optimizer": "sgd", "lr": 0.03, "momentum": 0.5, "weight_decay": 0.0}
            train = replace(train, **sgd, batch_size=10, epochs=5)
        loss = {} if self.loss == PLAIN else {"loss": self.loss}
        server = replace(context.config.server, weights=self.weights)
        return {"train": train, "server": server, **loss}

    # ---- stage 1, steps 1 to 4: every client trains once ---------------------------------------

    def sweep(self, context: Context, state: State) -> State:
        """Visit every client once, ``sweep_fraction`` of its group at a time; add up their LID.

        Stage 1, step 1. With 0 one client after another: the model goes from client to client.
        """
        levels = state.values.get("noise_level", {})
        replies: dict[ClientId, Any] = {}
        for chosen in self.turns(context, state):
            each = {k: {"noise_level": levels.get(str(k), 0.0)} for k in chosen}
            how = self.local_training(context)
            state, sent = train_groups_by(self.visit, context, state, chosen, each=each, **how)
            replies |= sent
        context.sent("up", "lid", len(replies) * SCALAR_BYTES)
        context.record(loss=mean_loss(replies))
        before = state.values.get("lid", {})
        lid = {str(k): before.get(str(k), 0.0) + reply["lid"] for k, reply in replies.items()}
        return replace(state, values={**state.values, "lid": lid})  # cumulative LID

    def turns(self, context: Context, state: State) -> list[list[ClientId]]:
        """Return who trains in each turn: every group in its own random order, at the same time."""
        turns: dict[int, list[ClientId]] = {}
        for members in members_by_group(state.groups):
            rng = stream(context.config.seed, "sweep", context.round, state.groups[members[0]])
            size = max(math.floor(self.sweep_fraction * len(members) + ROUNDING), 1)
            for position, i in enumerate(rng.permutation(len(members))):
                turns.setdefault(position // size, []).append(members[i])
        return [sorted(turns[t]) for t in sorted(turns)]

    def visit(
        self, client: Client, memory: Tree, arguments: Mapping[str, Any]
    ) -> tuple[Tree, Contribution]:
        """Train, then evaluate the trained model on all samples (stage 1, steps 2 to 4)."""
        labels = current_labels(client, memory)
        strength = self.proximal * arguments["noise_level"]  # beta mu_k
        pull = {"regulariser": PullToReceived(strength, squared=self.squared)} if strength else {}
        tree, report = trained_model(client, labels, {**arguments, **pull})
        images = client.world.images(client.sample_ids)
        probabilities = softmax(client_logits(tree, images, arguments))
        outputs = probabilities if self.double_softmax else np.log(probabilities)
        losses = sample_losses(outputs, labels).astype(np.float32)
        lid = local_intrinsic_dimension(probabilities, self.neighbours)
        return {**memory, "losses": losses}, contribution_of(tree, report, arguments, lid=lid)

    # ---- stage 1, step 7, and the end of stage 2: labels ---------------------------------------

    def relabel_noisy_clients(
        self, context: Context, state: State, *, ratio: float | None
    ) -> State:
        """Let noisy clients replace labels by what their group's model is sure of, and score that.

        ``ratio``: among the n_k mu_k ratio largest losses; null: among all samples.
        """
        noisy, levels = state.values["noisy"], state.values["noise_level"]
        handles = {g: state.models[group_model(g)] for g in {state.groups[k] for k in noisy}}
        if noisy:
            context.federation.map(
                self.replace_doubtful_labels,
                on=noisy,
                each={k: {"group": state.groups[k], "noise_level": levels[str(k)]} for k in noisy},
                models=OwnModels(handles, state.groups),
                ratio=ratio,
                model=context.config.model,
                kernel=context.config.train.kernel,
                classes=context.classes,
            )
            sizes = [handles[state.groups[k]].nbytes for k in noisy]
            context.sent("down", "model to relabel by", sum(sizes))
        context.observe_labels(context.federation.map(labels_task))
        return state

    def replace_doubtful_labels(
        self, client: Client, memory: Tree, arguments: Mapping[str, Any]
    ) -> tuple[Tree, int]:
        """Replace doubtful labels by predictions that the group's model is sure of.

        Stage 1, step 7, and the end of stage 2.
        """
        labels = current_labels(client, memory)
        images = client.world.images(client.sample_ids)
        logits = client_logits(arguments["models"][arguments["group"]], images, arguments)
        candidates = np.arange(len(labels))
        if arguments["ratio"] is not None:  # floor(n_k mu_k pi)
            count = len(labels) * arguments["noise_level"] * arguments["ratio"]
            candidates = doubtful(np.asarray(memory["losses"]), math.floor(count + ROUNDING))
        new = with_predictions(softmax(logits), labels, candidates, self.confidence)
        return {**memory, "labels": new}, int((new != labels).sum())

    # ---- stage 2: who fine-tunes ---------------------------------------------------------------

    def clean_participants(self, context: Context, state: State) -> list[ClientId]:
        """Return who trains in a round of stage 2: min(C K, clean clients) of the clean ones."""
        clean, config = clean_clients(state, self.clean_level), context.config
        wanted = config.train.participation * len(context.federation.clients) / len(clean)
        train = replace(config.train, participation=min(wanted, 1.0))
        role = context.stage
        return participants(clean, train, seed=config.seed, role=role, round_id=context.round)


# ---- stage 1, steps 2 to 4: the proximal term and the local intrinsic dimension ----------------


class PullToReceived:
    """FedCorr's proximal term, strength * ||w - w_received||, or the norm's square."""

    def __init__(self, strength: float, *, squared: bool) -> None:
        self._strength, self._squared = strength, squared
        self._received: list[torch.Tensor] = []

    def __call__(self, module: torch.nn.Module) -> torch.Tensor:
        """Return the term; the first call sees the received weights."""
        import torch

        weights = list(module.parameters())
        self._received = self._received or [w.detach().clone() for w in weights]
        pairs = zip(weights, self._received, strict=True)
        total = torch.stack([((w - r) ** 2).sum() for w, r in pairs]).sum()
        # A root has no slope at 0, where training starts: a small floor inside it.
        return self._strength * (total if self._squared else (total + 1e-12).sqrt())


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax of each row, float64; never exactly zero."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True, initial=-np.inf)
    exponents = np.exp(shifted)
    probabilities: np.ndarray = exponents / exponents.sum(axis=1, keepdims=True)
    return np.maximum(probabilities, np.finfo(np.float64).tiny)


LID_FLOOR = 1e-6
CHUNK = 1024
"""Rows of the distance matrix held at a time."""


def local_intrinsic_dimension(probabilities: np.ndarray, neighbours: int = 20) -> float:
    """Return the mean LID of N samples' softmax outputs (N, C) among themselves (step 4).

    -(1/k sum_j log(d_ij / d_ik))^-1 over the k nearest OTHER samples. One neighbour says nothing,
    its ratio is 1: 0 with fewer than three samples.
    """
    k = min(neighbours, len(probabilities) - 1)
    if k < 2:
        return 0.0
    points = probabilities.astype(np.float64)
    dimensions = []
    for at in range(0, len(points), CHUNK):
        rows = points[at : at + CHUNK]
        squared = (rows**2).sum(axis=1)[:, None] + (points**2).sum(axis=1) - 2.0 * rows @ points.T
        distance = np.sqrt(np.maximum(squared, 0.0))
        places = np.arange(len(rows))
        distance[places, at + places] = -1.0  # the sample itself comes first and is skipped
        nearest = np.sort(np.partition(distance, k, axis=1)[:, : k + 1], axis=1)[:, 1:]
        ratio = nearest / (nearest[:, -1:] + LID_FLOOR) + LID_FLOOR
        # The log of a ratio below one is negative; never zero.
        dimensions.append(-1.0 / (np.log(ratio).mean(axis=1) - LID_FLOOR))
    return float(np.concatenate(dimensions).mean())


# ---- stage 1, steps 5 and 6: noisy clients and how noisy they are ------------------------------


def find_noisy_clients(context: Context, state: State) -> State:
    """Split each group by its clients' cumulative LID, estimate the noise of the upper part.

    Stage 1, steps 5 and 6.
    """
    lid = {k: state.values["lid"][str(k)] for k in state.groups}
    noisy: list[ClientId] = []
    for members in members_by_group(state.groups):
        upper = upper_component(np.array([lid[k] for k in members]))
        noisy += [k for k, is_upper in zip(members, upper, strict=True) if is_upper]
    noisy.sort()
    estimates = context.federation.map(noise_level_task, on=noisy) if noisy else {}
    context.sent("up", "noise level", len(noisy) * SCALAR_BYTES)
    levels = {k: estimates.get(k, 0.0) for k in sorted(state.groups)}
    context.observe_noisy(noisy, lid, {k: levels[k] for k in state.groups})
    values = {"noise_level": {str(k): level for k, level in levels.items()}, "noisy": noisy}
    context.record(noise_level=values["noise_level"])
    return replace(state, values={**state.values, **values})


@stateless
def noise_level_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, float]:
    """Reply with mu_k, the share of the client's losses in the upper of two Gaussians (step 6)."""
    upper = upper_component(memory["losses"])
    return memory, float(upper.mean()) if len(upper) else 0.0


def upper_component(values: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """Return which values (N,) belong to the Gaussian of larger mean, of a mixture of two.

    Nothing does where the values cannot be told apart (fewer than two, or all equal).
    """
    if len(values) < 2 or np.ptp(values) == 0:
        return np.zeros(len(values), dtype=bool)
    from sklearn.mixture import GaussianMixture

    column = np.asarray(values, dtype=np.float64)[:, None]
    with one_thread():  # k-means adds over threads: other bits for another number
        mixture = GaussianMixture(n_components=2, random_state=seed).fit(column)
        assigned: np.ndarray = mixture.predict(column)
    return np.asarray(assigned == int(np.argmax(mixture.means_[:, 0])))


# ---- stage 1, step 7: which labels are doubtful, and what replaces them ------------------------


def doubtful(losses: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the ``count`` largest losses; the lower position wins a tie."""
    order: np.ndarray = np.argsort(-losses, kind="stable")
    return order[:count]


def with_predictions(
    probabilities: np.ndarray, labels: np.ndarray, candidates: np.ndarray, threshold: float
) -> np.ndarray:
    """Return labels, those of candidates with a probability above ``threshold`` as predicted."""
    sure = candidates[probabilities[candidates].max(axis=1) > threshold]
    new = labels.copy()
    new[sure] = probabilities[sure].argmax(axis=1)
    return new


@stateless
def labels_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, np.ndarray]:
    """Reply with the labels a client trains on now (for the evaluator, not the protocol)."""
    return memory, current_labels(client, memory)


# ---- stage 2 -----------------------------------------------------------------------------------


def clean_clients(state: State, threshold: float) -> list[ClientId]:
    """Return clients of estimated noise up to ``threshold`` (stage 2), in every group at least one.

    A group without any gives its ceil(K / 10) cleanest, where the released code divides by zero.
    """
    levels = state.values["noise_level"]
    chosen: list[ClientId] = []
    for members in members_by_group(state.groups):
        clean = [k for k in members if levels[str(k)] <= threshold]
        by_noise = sorted(members, key=lambda k: (levels[str(k)], k))
        chosen += clean or by_noise[: math.ceil(len(members) / 10)]
    return sorted(chosen)


# ---- with FB-NLL's groups and label correction -------------------------------------------------


@METHODS.register("fedcorr_fb_nll")
@settings
class FedCorrFbNll(FedCorr):
    """FedCorr + FB-NLL: FB-NLL's groups, and its label correction between FedCorr's stages."""

    groups: GroupsSettings = GroupsSettings(kind="similarity")
    correction: CorrectionSettings = CorrectionSettings()
    integration: Literal["start", "stage1", "stage2"] = "stage1"  # FB-NLL's text on Table IX
    """Repair labels before stage 1, after it (the printed tables), or after stage 2."""

    @property
    def repair(self) -> Repair:
        before = {"start": "identify", "stage1": "finetune", "stage2": "train"}[self.integration]
        return Repair(before, self.correction)
