"""FedRN: train on the samples that reliable neighbours judge to be clean.

Kim, Shin, Jang, Song and Yun, CIKM 2022, Algorithm 1; equations and lines below are this paper's
(raysim/docs/sheets/fedrn.md).

Deviations from the paper:
- the client's own judge is its own last local model, as in the released code (line 13 can be read
  both ways);
- a client that never uploaded is nobody's neighbour and judges with the received model alone, since
  there is no other; similarity and expertise are scaled over the clients that have uploaded;
- where no sample is taken for clean, all are: there would be nothing to train on.
Deviation from the released code: samples are judged, and expertise is measured, without
augmentation, since the paper speaks of the samples themselves.

Not in this file: the two Gaussians of Eq. 6 (``core.selection.clean_posterior``) and the tuning of
a neighbour's head, line 11 (``Session.tune_head`` in models/sessions.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from raysim.core.selection import clean_posterior, unit_range
from raysim.methods.method import METHODS, LocalTask, WarmedUp, other_training
from raysim.models.evaluation import sample_losses
from raysim.models.sessions import Session
from raysim.protocols import Client, ClientId, Context, Contribution, State, Tree, Where
from raysim.seeding import stream
from raysim.settings import In, settings
from raysim.steps.group_training import (
    chosen_clients,
    evaluated,
    local_arguments,
    with_initial,
)
from raysim.steps.local_training import client_logits
from raysim.steps.server import SCALAR_BYTES, group_model
from raysim.steps.sessions import received_model, sent_model

THRESHOLD = 0.5
"""Probability of being clean above which a sample is selected (Eq. 8 and 9)."""


@METHODS.register("fedrn")
@settings
class FedRn(WarmedUp):
    """FedRN (Kim et al. 2022): neighbours' models help to select clean samples."""

    neighbours: Annotated[int, In("[0, inf)", do="try 2")] = 2
    """k."""
    expertise: Annotated[float, In("[0, 1]", do="try 0.6")] = 0.6  # section 5.1
    """alpha, share of the neighbours' expertise in their reliability; the rest is similarity."""
    warmup_rounds: Annotated[
        int | None, In("[1, inf)", do="neighbours are known after a round")
    ] = None
    """Rounds of plain FedAvg first; null: a fifth of train.rounds (100 of 500)."""
    choice: Literal["reliable", "random"] = "reliable"
    """Random neighbours are the paper's ablation (Table 9)."""
    tune: bool = True
    """Fine-tune the neighbours' heads before they judge; false is the paper's ablation."""
    probe: Literal["softmax", "logits"] = "softmax"
    """Which outputs on noise are compared (Eq. 5); the released code compares logits."""
    title: ClassVar[str] = "FedRN"
    refuses: ClassVar = (other_training,)
    stateless: ClassVar[bool] = False  # the upload waits in scratch for ``kept_upload``

    # ---- at the server -------------------------------------------------------------------------

    def round(self, context: Context, state: State) -> State:
        """Train with neighbours (after the warm-up); keep uploads, expertise and probes."""
        state = state if state.models else with_initial(context, state)
        received = state.models[group_model(0)]
        chosen = chosen_clients(context)
        each = self.judges(context, state, chosen) if context.stage == "train" else {}
        state, replies = self.train_groups(context, state, chosen, each=each)  # lines 7 to 20
        # The same uploads once more, each under its client's own name.
        kept = context.federation.keep(
            self.kept_upload,
            on=replies,
            each={k: each[k] for k in replies if k in each},
            group=0,
            models={0: received},
            **local_arguments(context),
        )
        context.sent("up", "expertise", len(replies) * SCALAR_BYTES)
        context.sent("up", "probe", sum(len(r["probe"]) for r in replies.values()) * SCALAR_BYTES)
        known = dict(state.values.get("neighbours", {}))
        for k in kept:
            known[str(k)] = {name: replies[k][name] for name in ("expertise", "probe")}
        models = {**state.models, **{client_model(k): handle for k, handle in kept.items()}}
        values = {**state.values, "neighbours": known}
        return evaluated(context, replace(state, models=models, values=values))

    def judges(
        self, context: Context, state: State, chosen: Sequence[ClientId]
    ) -> dict[ClientId, dict[str, Any]]:
        """Return for each client its own last model, its neighbours' models, and their scores R.

        A client that never uploaded gets none of them: the received model judges alone.
        """
        known = state.values.get("neighbours", {})
        ids = sorted(int(k) for k in known)
        expertise = np.array([known[str(k)]["expertise"] for k in ids])
        probes = np.array([known[str(k)]["probe"] for k in ids])
        judges: dict[ClientId, dict[str, Any]] = {}
        for k in chosen:
            if k not in ids:
                judges[k] = {"judges": [], "scores": [1.0]}
                continue
            me = ids.index(k)
            scores = reliability(expertise, probes, me, weight=self.expertise)  # line 5
            rows = most_reliable(scores, me, self.neighbours)  # line 6
            if self.choice == "random":
                others = np.delete(np.arange(len(ids)), me)
                rng = stream(context.config.seed, "neighbours", context.round, k)
                rows = rng.permutation(others)[: self.neighbours]
            picked = [me, *rows.tolist()]
            models = [state.models[client_model(ids[row])] for row in picked]
            judges[k] = {"judges": models, "scores": [float(scores[row]) for row in picked]}
            context.sent("down", "neighbour models", sum(model.nbytes for model in models[1:]))
        return judges

    # ---- at a client ---------------------------------------------------------------------------

    def networks(self, received: Tree, memory: Tree, sent: Mapping[str, Any]) -> Sequence[Tree]:
        return [received, received]  # the second one becomes each neighbour's

    def train(self, session: Session, memory: Tree, where: Where) -> tuple[Tree, Contribution]:
        """Train the received model on the clean samples; reply with it, Acc and probe."""
        selected = self.selected(session) if "judges" in session.sent else None
        among = None if selected is None else np.flatnonzero(selected)
        session.descend(0, among=among)  # lines 14-15
        tree = session.tree(0)
        session.scratch["upload"] = where, tree
        return memory, sent_model(  # line 18
            session,
            tree=tree,
            selected=selected,
            expertise=accuracy(session, tree),
            probe=self.probed(session, tree),
        )

    # Not declared stateless: another actor would train again, and who is known needs an upload.
    def kept_upload(
        self, client: Client, memory: Tree, arguments: Mapping[str, Any]
    ) -> tuple[Tree, Contribution]:
        """Reply with the model that was sent for the mean; trained again if it was lost here."""
        if client.scratch.get("upload", (None,))[0] != arguments["where"]:
            LocalTask(self)(client, memory, arguments)
        _, tree = client.scratch.pop("upload")
        return memory, Contribution(tree, 1.0)

    def selected(self, session: Session) -> np.ndarray:
        """Return S_c, the samples that the judges take for clean (Eq. 8), as a mask."""
        mine, *others = session.sent["judges"] or [received_model(session.sent)]
        posteriors = [posterior(session, mine)]
        sure = np.flatnonzero(posteriors[0] > THRESHOLD)  # S_aux, Eq. 9
        sure = sure if len(sure) else np.arange(len(session.labels))
        for neighbour in others:
            session.load(1, neighbour)
            if self.tune:
                session.tune_head(1, among=sure)  # line 11
            posteriors.append(posterior(session, session.tree(1)))
        scores = np.array(session.sent["scores"])
        mask = ensemble(np.stack(posteriors), scores) > THRESHOLD  # line 13
        return mask if mask.any() else np.ones_like(mask)

    def probed(self, session: Session, tree: Tree) -> list[float]:
        """Return the output on x~, one image of Gaussian noise, the same for everyone (line 17)."""
        image = stream(session.sent["seed"], "probe").normal(size=(1, *session.images.shape[1:]))
        arguments = {**session.sent, "kernel": session.train.kernel}
        logits = client_logits(tree, image.astype(np.float32), arguments)[0].astype(np.float64)
        if self.probe == "softmax":
            logits = np.exp(logits - logits.max())
            logits /= logits.sum()
        return [float(value) for value in logits]


def client_model(client: ClientId) -> str:
    """Return the name under which the server keeps a client's last upload."""
    return f"upload/{client}"


# ---- how reliable a neighbour is. N clients, C classes -------------------------------------------


def reliability(
    expertise: np.ndarray, probes: np.ndarray, row: int, *, weight: float
) -> np.ndarray:
    """Return R(c, n) for all clients n (N,), c being the one in ``row`` (Eq. 3).

    ``expertise`` (N,) are the clients' Acc, ``probes`` (N, C) their outputs on x~.
    """
    norms = np.linalg.norm(probes, axis=1)
    cosine = probes @ probes[row] / np.maximum(norms * norms[row], np.finfo(np.float64).tiny)
    similarity = unit_range(cosine)  # Eq. 5
    similarity[row] = 1.0
    scores: np.ndarray = weight * unit_range(expertise) + (1.0 - weight) * similarity  # Eq. 3, 4
    return scores


def most_reliable(scores: np.ndarray, row: int, count: int) -> np.ndarray:
    """Return R_c(k), the rows of the ``count`` highest scores besides ``row`` (Eq. 3).

    The lower row wins a tie.
    """
    order = np.argsort(-scores, kind="stable")
    return order[order != row][:count]


# ---- how a client judges its samples -------------------------------------------------------------


def posterior(session: Session, tree: Tree) -> np.ndarray:
    """Return p(g | loss) of every sample by the model ``tree`` (Eq. 6)."""
    return clean_posterior(sample_losses(outputs(session, tree), session.labels))


def ensemble(posteriors: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the mean of posteriors (J, N) weighted by the J judges' scores (Eq. 7)."""
    total = scores.sum()
    weights = scores / total if total > 0 else np.full(len(scores), 1.0 / len(scores))
    mean: np.ndarray = weights @ posteriors
    return mean


def accuracy(session: Session, tree: Tree) -> float:
    """Return Acc, the accuracy on the client's own, partly wrong labels (line 16)."""
    predicted = outputs(session, tree).argmax(axis=1)
    return float(np.mean(predicted == session.labels)) if len(session.labels) else 0.5


def outputs(session: Session, tree: Tree) -> np.ndarray:
    """Return the logits of the client's own images, in batches as large as in training."""
    how = {"kernel": session.train.kernel, "normed_rows": session.train.batch_size}
    return client_logits(tree, session.images, {**session.sent, **how})
