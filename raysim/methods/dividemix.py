"""DivideMix in a federation: doubted labels are dropped and guessed.

Li, Socher and Hoi, ICLR 2020, as the baseline that FedRN (Kim et al. 2022) makes of it: both
networks are sent, trained and averaged (raysim/docs/sheets/dividemix.md).

Deviations from the paper, all as in FedRN's comparison:
- the first network alone is evaluated (the paper: the sum of both), as in Co-teaching;
- the warm-up is counted in rounds, since a client is not there in every round, and has no entropy
  penalty;
- losses are those of the current epoch (the paper: for 90 % noise the mean of the last five);
- the optimiser is that of the train section, as for every method.
Deviations from FedRN's released code:
- the warm-up has as many rounds as asked for (the code: one more);
- losses are of images as they are (the code: augmented), as the paper judges them;
- the optimiser keeps its momentum and weight decay over a round (the code: momentum of an epoch, no
  decay), as every method's here;
- a part of fewer than two samples, where the code stops, means an epoch of cross-entropy; a batch
  of one sample is left out, since batch norm needs two.
With train.augment none the two views of an image are equal.

Not in this file: the Gaussians (``core.selection.clean_posterior``), sharpening, mixup and the
losses of soft labels (models/soft_targets.py), the pair of networks (co_teaching.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from raysim.core.selection import clean_posterior
from raysim.errors import ConfigError
from raysim.methods.co_teaching import PEERS, pair_in, sent_pair, teach, with_pair
from raysim.methods.method import METHODS, WarmedUp, other_training
from raysim.models.augmentation import augmented
from raysim.models.evaluation import sample_losses
from raysim.models.sessions import Session, gradients
from raysim.models.soft_targets import mixed, prior_divergence, sharpened, soft_cross_entropy
from raysim.models.training import Batch, diverged, local_optimizer
from raysim.protocols import Context, Contribution, State, Tree, Where
from raysim.settings import In, settings

if TYPE_CHECKING:
    import torch

    Views = tuple[torch.Tensor, torch.Tensor]

SMALLEST = 2
"""Samples of a part and of a batch: batch norm needs more than one."""


@METHODS.register("dividemix")
@settings
class DivideMix(WarmedUp):
    """DivideMix (Li et al. 2020): two networks, doubted labels guessed and mixed."""

    threshold: Annotated[float, In("(0, 1)", do="try 0.5")] = 0.5
    """tau: a label is used if it is clean with a higher probability."""
    temperature: Annotated[float, In("[0.1, inf)", do="try 0.5")] = 0.5
    """T of the sharpening; below 0.1 powers of p vanish in float32."""
    mixing: Annotated[float, In("(0, inf)", do="try 4")] = 4.0
    """a of Beta(a, a)."""
    unlabelled: Annotated[float, In("[0, inf)", do="try 25")] = 25.0
    """lambda_u, weight of the samples without labels."""
    ramp_rounds: Annotated[int, In("[0, inf)", do="try 16")] = 16
    """Rounds after the warm-up until that weight is reached."""
    mixture_steps: Annotated[int, In("[1, inf)", do="try 100")] = 100  # FedRN; 10 in the paper
    """Of the fit of two Gaussians to the losses."""
    title: ClassVar[str] = "DivideMix"
    refuses: ClassVar = (other_training,)

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        WarmedUp.check(self, config, classes=classes, dimensions=dimensions)
        if config.train.batch_size < SMALLEST:
            raise ConfigError(
                f"train.batch_size is {config.train.batch_size}, but DivideMix mixes the samples "
                "of a batch; raise it to 2 or more"
            )

    def round(self, context: Context, state: State) -> State:
        return WarmedUp.round(self, context, with_pair(context, state))

    def networks(self, received: Tree, memory: Tree, sent: Mapping[str, Any]) -> Sequence[Tree]:
        return pair_in(received)

    def train(self, session: Session, memory: Tree, where: Where) -> tuple[Tree, Contribution]:
        """Train both networks, after the warm-up on divided samples; reply with both."""
        if where.stage == "warmup":
            teach(session, rate=0.0)
            return memory, sent_pair(session, selected=None)
        trusted = self.train_divided(session, round_id=where.round)
        return memory, sent_pair(session, selected=trusted)

    def train_divided(self, session: Session, *, round_id: int) -> np.ndarray:
        """Train each network on the parts into which the other one divides the samples (co-divide).

        Where a part has fewer than two samples, that network has an epoch of cross-entropy instead.
        Return whose labels the first network trusted at the start of the last epoch.
        """
        updates = [local_optimizer(session.weights(i), session.train) for i in (0, 1)]
        clean = [np.ones(len(session.labels))] * 2
        for epoch in range(session.train.epochs):
            losses = [plain_losses(session, i) for i in (0, 1)]
            clean = [clean_posterior(values, steps=self.mixture_steps) for values in losses]
            for me, peer in PEERS:
                is_clean = clean[peer] > self.threshold
                if min(is_clean.sum(), (~is_clean).sum()) < SMALLEST:
                    steps = cross_entropy_steps(session, me)
                else:
                    steps = self.mixed_steps(session, me, clean[peer], round_id=round_id)
                for count, loss in steps:
                    updates[me](gradients(loss, session.weights(me)))
                    if me == 0:
                        session.note(epoch, count, loss)
        return clean[0] > self.threshold

    def mixed_steps(
        self, session: Session, me: int, clean: np.ndarray, *, round_id: int
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield size and loss of an epoch over the clean part; the other part goes round.

        Network ``me`` moves between two of them, its peer stays as it is, in evaluation mode.
        """
        import torch

        is_clean = clean > self.threshold
        labelled = np.flatnonzero(is_clean)
        unlabelled = _endless(session, np.flatnonzero(~is_clean))
        count = -(-len(labelled) // session.train.batch_size)
        network, peer = session.networks[me], session.networks[1 - me].eval()
        for number, (_, batch) in enumerate(session.batches(labelled, epochs=1)):
            if len(batch.index) < SMALLEST:
                continue
            x, u = _views(session, batch), _views(session, next(unlabelled))
            trust = torch.tensor(clean[batch.index], dtype=torch.float32, device=session.device)
            with torch.no_grad():
                known = co_refined(network, x, labels=batch.labels, trust=trust)
                guessed = mean_prediction([network, peer], u)  # co-guessing
            targets = sharpened(torch.cat([known, known, guessed, guessed]), self.temperature)
            # MixMatch: everything is mixed with a permutation of itself
            share = float(session.rng.beta(self.mixing, self.mixing))
            share = max(share, 1.0 - share)
            order = torch.tensor(session.rng.permutation(len(targets)), device=session.device)
            logits = network(mixed(torch.cat([*x, *u]), order, share))
            targets = mixed(targets, order, share)
            strength = self.strength(round_id + number / count)
            yield len(batch.index), semi_supervised(logits, targets, 2 * len(known), strength)
        peer.train()

    def strength(self, elapsed: float) -> float:
        """Return lambda_u, ``elapsed`` rounds after the warm-up."""
        ramp = self.ramp_rounds
        return self.unlabelled * (min(max(elapsed / ramp, 0.0), 1.0) if ramp else 1.0)


def plain_losses(session: Session, which: int) -> np.ndarray:
    """Return the cross-entropy (N,) of a network with the labels, in evaluation mode."""
    outputs = session.looked_at(which, session.networks[which], session.classes)
    losses = sample_losses(outputs, session.labels)
    if not np.isfinite(losses).all():
        raise diverged(session.train, session.train.epochs, 2, "a sample's loss is not finite")
    return losses


def cross_entropy_steps(session: Session, me: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield size and loss of the batches of an epoch with all given labels."""
    from torch.nn.functional import cross_entropy

    for _, batch in session.batches(epochs=1):
        logits = session.networks[me](batch.images)
        yield len(batch.index), cross_entropy(logits, batch.labels)


def co_refined(
    network: Any, views: Views, *, labels: torch.Tensor, trust: torch.Tensor
) -> torch.Tensor:
    """Return w y + (1 - w) p (co-refinement); p is the mean of the network over both views."""
    from torch.nn.functional import one_hot

    p = mean_prediction([network], views)
    given = one_hot(labels, p.shape[1]).to(p.dtype)
    return trust[:, None] * given + (1.0 - trust[:, None]) * p


def mean_prediction(networks: Sequence[Any], views: Views) -> torch.Tensor:
    """Return the mean prediction of the networks over both views; of two: co-guessing."""
    import torch

    predictions = [network(view).softmax(dim=1) for network in networks for view in views]
    return torch.stack(predictions).mean(dim=0)


def semi_supervised(
    logits: torch.Tensor, targets: torch.Tensor, labelled: int, strength: float
) -> torch.Tensor:
    """Return L_x + lambda_u L_u + L_reg; the first ``labelled`` rows have labels."""
    known = soft_cross_entropy(logits[:labelled], targets[:labelled])
    gap = (logits[labelled:].softmax(dim=1) - targets[labelled:]).square().mean()
    return known + strength * gap + prior_divergence(logits)


def _views(session: Session, batch: Batch) -> Views:
    """Return two augmentations of a batch."""
    import torch

    images = session.images[batch.index]
    other = augmented(images, session.train.augment, session.rng, session.black)
    return batch.images, torch.tensor(other, dtype=torch.float32, device=session.device)


def _endless(session: Session, among: np.ndarray) -> Iterator[Batch]:
    """Yield batches of at least two samples, epoch after epoch."""
    while True:
        for _, batch in session.batches(among, epochs=1):
            if len(batch.index) >= SMALLEST:
                yield batch
