"""Mixup: lam f(x~, y) + (1 - lam) f(x~, y') with one lam per batch (FedCorr)."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from raysim.models.params import initial_tree, load_tree, to_tree
from raysim.models.training import TrainSettings, train_client
from raysim.models.zoo import Mlp, SmallCnn
from raysim.seeding import stream

SHAPE, CLASSES, SAMPLES = (8, 8, 1), 3, 11
MIXED = TrainSettings(epochs=2, batch_size=4, lr=0.1, mixup=1.0)


def data():
    rng = stream(0, "test.mixup")
    images = rng.standard_normal((SAMPLES, 1, 8, 8)).astype(np.float32)
    return images, rng.integers(0, CLASSES, SAMPLES)


def train(train_settings, *, model=None, seed=0, **hooks):
    model = model or Mlp()
    tree = initial_tree(model, SHAPE, CLASSES, seed=0)
    rng = stream(seed, "train")
    return train_client(model, tree, *data(), train_settings, rng=rng, classes=CLASSES, **hooks)


def by_loops(seed=0):
    """The same training with torch.optim, every mixture written out sample by sample."""
    images, labels = data()
    module = Mlp().build(SHAPE, CLASSES)
    load_tree(module, initial_tree(Mlp(), SHAPE, CLASSES, seed=0))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    rng = stream(seed, "train")
    rng.integers(2**63)  # train_client first draws the seed of torch
    for _ in range(2):
        order = rng.permutation(SAMPLES)
        for start in range(0, SAMPLES, 4):
            index = order[start : start + 4]
            lam, partner = rng.beta(1.0, 1.0), rng.permutation(len(index))
            total = torch.zeros(())
            for own, other in zip(index, index[partner], strict=True):
                image = np.float32(lam) * images[own] + np.float32(1 - lam) * images[other]
                found = module(torch.from_numpy(image[None]))
                total = total + lam * cross_entropy(found, torch.tensor(labels[[own]]))
                total = total + (1 - lam) * cross_entropy(found, torch.tensor(labels[[other]]))
            optimizer.zero_grad()
            (total / len(index)).backward()
            optimizer.step()
    return to_tree(module)


def test_training_on_mixtures_follows_the_equation():
    found, _ = train(MIXED)

    # A batch and its samples one by one round differently.
    np.testing.assert_allclose(found["trainable"], by_loops()["trainable"], atol=2e-6)


def test_mixtures_change_the_result_and_zero_does_not():
    plain, _ = train(replace(MIXED, mixup=0.0))
    never, _ = train(TrainSettings(epochs=2, batch_size=4, lr=0.1))
    mixed, _ = train(MIXED)

    assert plain["trainable"].tobytes() == never["trainable"].tobytes()
    assert not np.allclose(plain["trainable"], mixed["trainable"], atol=1e-4)


def test_a_loss_sees_both_labels_of_a_mixture_with_their_shares():
    _, labels = data()
    seen = []

    def look(logits, batch):
        seen.append(batch)
        return 0.0 * logits.sum()

    train(replace(MIXED, epochs=1), loss=look)

    assert len(seen) == 2 * 3  # three batches, each with either label
    for own, other in zip(seen[::2], seen[1::2], strict=True):
        assert own.labels.tolist() == labels[own.index].tolist()
        assert sorted(other.labels.tolist()) == sorted(own.labels.tolist())
        assert 0.0 <= own.share == other.share <= 1.0
        assert other.labels.tolist() == own.partners.tolist()


def test_shares_are_drawn_anew_for_every_batch_from_beta():
    shares = []

    def look(logits, batch):
        shares.append(batch.share)
        return 0.0 * logits.sum()

    train(replace(MIXED, epochs=200), loss=look)

    drawn = np.array(shares[::2])
    assert len(np.unique(drawn)) == len(drawn) == 600
    # Beta(1, 1) is uniform: mean 1/2, deviation 0.289 / sqrt(600) = 0.012; four of them.
    assert abs(drawn.mean() - 0.5) < 4 * 0.012


@pytest.mark.parametrize("model", [Mlp(), SmallCnn()])
def test_the_same_stream_gives_the_same_bits(model):
    one, two, other = (train(MIXED, model=model, seed=s)[0] for s in (0, 0, 1))

    assert one["trainable"].tobytes() == two["trainable"].tobytes()
    assert one["trainable"].tobytes() != other["trainable"].tobytes()


def test_one_sample_is_mixed_with_itself():
    images, labels = data()
    tree = initial_tree(Mlp(), SHAPE, CLASSES, seed=0)
    args = (Mlp(), tree, images[:1], labels[:1])

    def one_step(mixup):
        rng = stream(0, "train")
        how = replace(MIXED, epochs=1, mixup=mixup)
        return train_client(*args, how, rng=rng, classes=CLASSES)[0]["trainable"]

    np.testing.assert_allclose(one_step(1.0), one_step(0.0), atol=1e-6)
