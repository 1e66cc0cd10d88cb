"""A round inside groups: who takes part, how models are averaged, what is sent."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.errors import ClientFailed
from raysim.methods import METHODS
from raysim.models.training import TrainSettings
from raysim.protocols import State, Where
from raysim.seeding import stream
from raysim.steps.group_training import train_alone, train_round
from raysim.steps.local_training import current_labels, participants
from raysim.steps.server import group_model

C, SIZES = 3, (5, 20, 35, 12)
MODEL_BYTES = (4 * C + C) * 4
"""Logistic regression on 2x2 images: weights and biases, four bytes each."""
KERNELS = ["autograd", "closed_form"]


def clients(bench, *overrides: str, kernel: str = "autograd", sizes=SIZES):
    rng = stream(0, "test.merging")
    labels = [rng.integers(0, C, n) for n in sizes]
    train = ("train.epochs=2", "train.batch_size=8", "train.lr=0.5", f"train.kernel={kernel}")
    made = bench(labels, "evaluate.every=100", *train, *overrides, classes=C)
    made.world.pixels = rng.normal(0, 1, made.world.pixels.shape).astype(np.float32)
    return made


def groups_of(*groups: int) -> State:
    return State(groups=dict(enumerate(groups)))


def weights(made, state: State, group: int) -> np.ndarray:
    return np.asarray(made.federation.get(state.models[group_model(group)])["trainable"])


def trained_alone(made) -> list[np.ndarray]:
    """What every client makes of the initial model by itself."""
    count = len(made.labels)
    state = train_alone(made.round(), groups_of(*range(count)))
    return [weights(made, state, k) for k in range(count)]


# ---- averaging -------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("rule", "shares"),
    [("uniform", (1 / 3, 1 / 3, 1 / 3)), ("samples", (5 / 60, 20 / 60, 35 / 60))],
)
def test_the_group_model_is_the_weighted_mean_of_its_clients(bench, kernel, rule, shares):
    made = clients(bench, f"server.weights={rule}", kernel=kernel)
    own = trained_alone(made)

    state = train_round(made.round(), groups_of(0, 0, 0, 1))

    expected = sum(s * w.astype(np.float64) for s, w in zip(shares, own[:3], strict=True))
    # Sums are exact to 2^-37; what remains is rounding the mean to float32.
    assert np.allclose(
        weights(made, state, 0), expected, rtol=np.finfo(np.float32).eps, atol=2**-37
    )
    assert np.array_equal(weights(made, state, 1), own[3])  # alone in its group


def test_uniform_and_sample_weights_differ_where_sizes_do(bench):
    uniform, samples = clients(bench), clients(bench, "server.weights=samples")

    one, two = (train_round(m.round(), groups_of(0, 0, 0, 0)) for m in (uniform, samples))

    assert not np.allclose(weights(uniform, one, 0), weights(samples, two, 0), atol=1e-3)


@pytest.mark.parametrize("kernel", KERNELS)
def test_all_groups_start_from_the_same_weights_and_then_go_their_way(bench, kernel):
    made = clients(bench, "train.participation=0.25", kernel=kernel)

    state = train_round(made.round(), groups_of(0, 1, 2, 3))

    (trained,) = participants([0, 1, 2, 3], made.config.train, seed=0, round_id=0)
    untouched = [k for k in range(4) if k != trained]
    assert all(
        np.array_equal(weights(made, state, 0 if trained else 1), weights(made, state, k))
        for k in untouched
    )
    assert not np.array_equal(weights(made, state, trained), weights(made, state, untouched[0]))


def test_a_group_without_a_participant_keeps_its_very_model(bench):
    made = clients(bench, "train.participation=0.25")
    before = train_alone(made.round(), groups_of(0, 1, 2, 3))
    (trained,) = participants([0, 1, 2, 3], made.config.train, seed=0, round_id=1)

    after = train_round(made.round(1), before)

    for k in range(4):
        same = after.models[group_model(k)] is before.models[group_model(k)]
        assert same == (k != trained)


def test_the_next_round_starts_from_the_mean(bench):
    made = clients(bench)
    first = train_round(made.round(), groups_of(0, 0, 1, 1))

    second = train_round(made.round(1), first)
    again = train_round(made.round(1), first)

    assert not np.array_equal(weights(made, second, 0), weights(made, first, 0))
    assert np.array_equal(weights(made, second, 0), weights(made, again, 0))


def test_clients_train_on_their_corrected_labels(bench):
    made, repaired = clients(bench), clients(bench)
    flip = {k: {"new": (own + 1) % C} for k, own in enumerate(repaired.labels)}
    repaired.federation.map(lambda client, memory, a: ({"labels": a["new"]}, None), each=flip)

    one, two = (train_round(m.round(), groups_of(0, 0, 0, 0)) for m in (made, repaired))

    kept = repaired.federation.map(
        lambda client, memory, _: (memory, current_labels(client, memory))
    )
    assert all(np.array_equal(kept[k], flip[k]["new"]) for k in range(4))
    assert not np.array_equal(weights(made, one, 0), weights(repaired, two, 0))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_client_with_one_sample_trains(bench, kernel):
    made = clients(bench, kernel=kernel, sizes=(1, 9))

    state = train_round(made.round(), groups_of(0, 1))

    assert np.isfinite(weights(made, state, 0)).all()
    assert not np.array_equal(weights(made, state, 0), weights(made, state, 1))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_a_client_that_diverges_is_named_with_advice(bench, kernel):
    made = clients(bench, kernel=kernel)
    made.world.pixels[made.ids[2]] = 1e30
    made.federation.where = Where("train", 0, 9)

    with pytest.raises(ClientFailed, match=r"client 2 failed in train round 1/9.*lower train\.lr"):
        train_round(made.round(), groups_of(0, 0, 0, 0))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_client_whose_weights_are_far_too_large_is_named(bench, kernel):
    # One step, so that the weights are large but finite.
    made = clients(bench, "train.epochs=1", "train.batch_size=64", kernel=kernel)
    made.world.pixels[made.ids[2]] *= 1e12
    made.federation.where = Where("train", 0, 9)

    with pytest.raises(ClientFailed, match=r"client 2 failed in train round 1/9.*not below 1e"):
        train_round(made.round(), groups_of(0, 0, 0, 0))


# ---- bytes and records -----------------------------------------------------------------------


@pytest.mark.parametrize(("share", "count"), [(1.0, 4), (0.5, 2), (0.1, 1)])
def test_every_participant_gets_and_gives_one_model(bench, share, count):
    context = clients(bench, f"train.participation={share}").round()

    train_round(context, groups_of(0, 0, 1, 1))

    # raysim/docs/sheets/metrics.md, "Bytes": P W down, P W up.
    sent = {"model": count * MODEL_BYTES}
    assert context.entry["bytes"] == {"up": sent, "down": sent}


def test_clients_that_train_alone_send_no_model(bench):
    made = clients(bench, "method=local_only", "train.rounds=2")
    state, entries = State(), []
    for stage in METHODS.get("local_only")().stages(made.config):
        for number in range(stage.rounds):
            context = made.round(number)
            state = stage.step(context, state)
            entries.append(context.entry)

    assert len(entries) == 3
    assert not any("bytes" in entry for entry in entries)
    assert state.groups == {0: 0, 1: 1, 2: 2, 3: 3}
    assert len({weights(made, state, k).tobytes() for k in range(4)}) == 4


def test_the_loss_of_a_round_is_the_mean_over_its_clients(bench):
    made = clients(bench)
    one_by_one = []
    for k in range(4):
        alone = clients(bench, "train.participation=0.25")
        alone.federation.clients = [k]
        context = alone.round()
        train_round(context, groups_of(0, 0, 0, 0))
        one_by_one.append(context.entry["loss"])
    context = made.round()

    train_round(context, groups_of(0, 0, 0, 0))

    assert context.entry["loss"] == pytest.approx(np.mean(one_by_one))


# ---- participation ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "clients", "count"),
    [(1.0, 10, 10), (0.5, 10, 5), (0.25, 10, 2), (0.01, 10, 1), (0.29, 100, 29), (0.57, 100, 57)],
)
def test_the_share_is_rounded_down_to_at_least_one(share, clients, count):
    train = TrainSettings(participation=share)

    assert len(participants(list(range(clients)), train, seed=0, round_id=0)) == count


def test_participants_are_clients_in_order_without_repetition():
    chosen = participants([3, 5, 8, 9, 11], TrainSettings(participation=0.6), seed=1, round_id=2)

    assert len(chosen) == 3
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= {3, 5, 8, 9, 11}
    assert all(type(k) is int for k in chosen)


def test_participants_depend_on_seed_and_round_only():
    half = TrainSettings(participation=0.5)

    def drawn(seed: int, round_id: int) -> tuple[int, ...]:
        return tuple(participants(list(range(30)), half, seed=seed, round_id=round_id))

    assert drawn(0, 3) == drawn(0, 3)
    assert len({drawn(seed, r) for seed in range(3) for r in range(3)}) == 9


def test_every_client_takes_part_equally_often():
    counts = np.zeros(20)
    for round_id in range(2000):
        counts[
            participants(
                list(range(20)), TrainSettings(participation=0.25), seed=0, round_id=round_id
            )
        ] += 1

    # Binomial(2000, 1 / 4): mean 500, deviation 19.4; five deviations leave 1e-5 for 20 clients.
    assert np.abs(counts - 500).max() < 5 * 19.4
