"""MR: the benchmark model, what clients send, what they keep and train on."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ks_2samp

from raysim.config import load_config
from raysim.errors import ConfigError
from raysim.methods.mr import BATCH, KEPT, Mr, closest_cut, cut_distances, train_benchmark
from raysim.models.evaluation import logits, sample_losses
from raysim.models.params import initial_tree
from raysim.models.training import TrainSettings, train_client
from raysim.models.zoo import MODELS
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError

C = 2
MODEL = MODELS.get("logistic")()
QUICK = Mr(patience=3, max_epochs=60)
GREY = np.zeros(1, np.float32)


def clients(bench, *overrides):
    """Three clients with images of two classes far apart, the second with wrong labels only."""
    train = ("train.epochs=1", "train.lr=0.5", "evaluate.every=100", "model.name=logistic")
    made = bench([[0] * 12, [0] * 6, [0] * 3, [0] * 40], *train, *overrides, classes=C)
    true = np.arange(61) % 2
    noise = stream(0, "test.mr").normal(0, 0.3, (61, 1, 2, 2))
    made.world.pixels = (noise + np.where(true, 2, -2)[:, None, None, None]).astype(np.float32)
    for k, ids in enumerate(made.ids):
        made.labels[k][:] = true[ids] if k != 1 else 1 - true[ids]
    made.clean = (made.ids[3], true[made.ids[3]])  # the last client is the server
    return made


def rounds(made, method=QUICK, count=1):
    """Run the selection and ``count`` rounds; return the state and the contexts."""
    _, select, train = method.stages(made.config)
    state, contexts = State(groups=dict.fromkeys(range(4), 0)), [made.round()]
    state = select.step(contexts[0], state)
    for number in range(count):
        contexts.append(made.round(number))
        state = train.step(contexts[-1], state)
    return state, contexts


def memory_task(client, memory, arguments):
    return memory, dict(memory)


# ---- the benchmark model -----------------------------------------------------------------------


def made_benchmark(method=QUICK, **changes):
    rng = stream(0, "test.mr.images")
    labels = rng.integers(0, C, 26)
    images = rng.normal(labels[:, None, None, None], 1.0, (26, 1, 2, 2)).astype(np.float32)
    how = {
        "model": MODEL,
        "train": TrainSettings(lr=0.1),
        "classes": C,
        "seed": 4,
        "method": method,
    }
    how = {**how, "black": GREY, **changes}
    return images, labels, train_benchmark(images=images, labels=labels, **how)


def test_the_reference_is_of_held_out_images():
    images, labels, found = made_benchmark()

    held = stream(4, "benchmark").permutation(26)[20:]  # floor(26 / 1.3) train it
    losses = sample_losses(logits(MODEL, found["model"], images[held], classes=C), labels[held])
    assert found["loss"] == pytest.approx(losses.mean())
    assert found["reference"].tolist() == QUICK.histogram(losses).tolist()
    assert found["reference"].sum() == 6


def test_training_stops_when_the_held_out_loss_no_longer_falls():
    _, _, patient = made_benchmark(Mr(patience=50, max_epochs=400, bins=9, largest_loss=1))
    _, _, capped = made_benchmark(Mr(patience=50, max_epochs=4, bins=9, largest_loss=1))

    assert capped["epochs"] == 4
    assert 50 < patient["epochs"] < 400
    assert patient["loss"] <= capped["loss"]


def test_an_epoch_is_one_of_ordinary_training_in_small_batches():
    one = Mr(patience=1, max_epochs=1, bins=9, largest_loss=1)
    images, labels, found = made_benchmark(one, train=TrainSettings(lr=0.1, proximal=3.0))
    rng = stream(4, "benchmark")
    mine = rng.permutation(26)[:20]
    start = initial_tree(MODEL, (2, 2, 1), C, 4)
    train = TrainSettings(lr=0.1, epochs=1, batch_size=BATCH)
    expected, _ = train_client(MODEL, start, images[mine], labels[mine], train, rng=rng, classes=C)

    np.testing.assert_array_equal(found["model"]["trainable"], expected["trainable"])


def test_two_images_are_enough():
    images = np.zeros((2, 1, 2, 2), np.float32)
    how = {"model": MODEL, "train": TrainSettings(), "classes": C, "seed": 0, "method": QUICK}

    found = train_benchmark(images=images, labels=np.array([0, 1]), black=GREY, **how)

    assert found["reference"].sum() == 1


# ---- the threshold -----------------------------------------------------------------------------


def test_bins_have_equal_width_and_the_last_one_is_open():
    found = Mr(bins=100).bins_of(np.array([0.0, 0.29, 0.3, 29.9, 30.0, 1e9, -1e-9]))

    assert found.tolist() == [0, 0, 1, 99, 99, 99, 0]


def test_the_cut_is_where_what_is_left_looks_like_the_reference():
    # Clean losses: half in bin 0, half in bin 1. Clients: the same, and wrong labels in bin 3.
    reference, pooled = np.array([5, 5, 0, 0]), np.array([20, 20, 0, 40])

    # Cut behind bin 0: |1 - 1/2|; behind 1 or 2: 0; behind 3: |1/4 - 1/2| and |1/2 - 1|.
    assert cut_distances(reference, pooled).tolist() == [0.5, 0.0, 0.0, 0.5]
    assert closest_cut(reference, pooled) == 1


def test_a_cut_below_all_losses_is_never_taken():
    pooled = np.array([0, 0, 3, 1])

    assert np.isinf(cut_distances(np.array([9, 0, 0, 0]), pooled)[:2]).all()
    assert closest_cut(np.array([9, 0, 0, 0]), pooled) == 2


def test_nothing_to_cut_keeps_everything():
    assert closest_cut(np.array([1, 2, 3]), np.zeros(3, int)) == 2


@pytest.mark.parametrize("seed", range(5))
def test_distances_are_those_of_the_two_sample_statistic(seed):
    rng = stream(seed, "test.thresholds")
    clean, noisy = rng.integers(0, 6, 40), rng.integers(0, 12, 70)
    reference, pooled = (np.bincount(x, minlength=12) for x in (clean, noisy))

    found = cut_distances(reference, pooled)

    for cut in range(12):
        left = noisy[noisy <= cut]
        expected = ks_2samp(clean, left).statistic if len(left) else np.inf
        assert found[cut] == pytest.approx(expected)
    assert closest_cut(reference, pooled) == int(np.argmin(found))


# ---- selection and training --------------------------------------------------------------------


def test_wrong_labels_are_left_out_and_right_ones_kept(bench):
    made = clients(bench)

    _, (select, train) = rounds(made)

    assert np.isfinite(train.entry["loss"])  # client 1 trains on nothing
    kept = made.federation.map(memory_task)
    assert [kept[k][KEPT].mean() for k in range(4)] == [1.0, 0.0, 1.0, 1.0]
    assert select.entry["benchmark"]["kept"] == pytest.approx(55 / 61)
    assert select.entry["benchmark"]["distance"] < 0.2


def test_clients_count_by_what_they_kept(bench):
    made = clients(bench)
    state, _ = rounds(made)
    alone = clients(bench)
    _, select, train = QUICK.stages(alone.config)
    apart = select.step(alone.round(), State(groups={0: 0, 1: 1, 2: 2, 3: 3}))
    apart = train.step(alone.round(), apart)

    def weights(bench, found, group):
        tree = bench.federation.get(found.models[f"group/{group}"])
        return np.asarray(tree["trainable"], np.float64)

    # 12, 0, 3 and 40 of their samples.
    expected = sum(n * weights(alone, apart, k) for k, n in ((0, 12), (2, 3), (3, 40))) / 55
    np.testing.assert_allclose(weights(made, state, 0), expected, atol=1e-6)
    start = initial_tree(alone.config.model, (2, 2, 1), C, alone.config.seed)
    # Who kept nothing moves nothing; means of weight 1e-6 are exact to 1.5e-5 (core/aggregation).
    np.testing.assert_allclose(weights(alone, apart, 1), start["trainable"], atol=1.5e-5)


def test_crops_of_the_benchmark_model_move_in_what_those_of_clients_do(bench, monkeypatch):
    made = clients(bench, "train.augment=crop_flip")
    black = np.full(1, -2.0, np.float32)
    monkeypatch.setattr(type(made.world), "black", black)
    ids, labels = made.clean
    how = {"model": made.config.model, "train": made.config.train, "seed": made.config.seed}
    how |= {"images": made.world.images(ids), "labels": labels, "classes": C, "method": QUICK}

    _, (select,) = rounds(made, count=0)

    found = select.entry["benchmark"]["loss"]
    assert found == train_benchmark(black=black, **how)["loss"]
    assert found != train_benchmark(black=GREY, **how)["loss"]


def test_histograms_travel_and_not_losses(bench):
    made = clients(bench)

    _, (select, train) = rounds(made)

    model = 4 * (4 * C + C)
    assert select.entry["bytes"] == {
        "down": {"benchmark model": 4 * model, "threshold": 4 * 4},
        "up": {"loss histogram": 4 * 100 * 4},
    }
    assert train.entry["bytes"]["up"] == {"model": 4 * model}


def test_a_process_that_lost_the_losses_computes_them_again(bench, monkeypatch):
    made, forgetful = clients(bench), clients(bench)
    run = forgetful.federation.map

    def forget_first(task, **arguments):
        run(lambda client, memory, _: (memory, client.scratch.clear()))
        return run(task, **arguments)

    monkeypatch.setattr(forgetful.federation, "map", forget_first)
    for bench_ in (made, forgetful):
        rounds(bench_, count=0)

    one, two = made.federation.map(memory_task), run(memory_task)
    assert all(np.array_equal(one[k][KEPT], two[k][KEPT]) for k in range(4))


def test_a_client_without_samples_keeps_none(bench):
    made = bench([[0, 1, 0, 1], []], "model.name=logistic", "train.epochs=1", classes=C)
    made.clean = (made.ids[0], made.labels[0])
    _, select, train = QUICK.stages(made.config)

    state = select.step(made.round(), State(groups={0: 0, 1: 0}))
    state = train.step(made.round(), state)

    assert made.federation.map(memory_task)[1][KEPT].shape == (0,)
    assert np.isfinite(made.federation.get(state.models["group/0"])["trainable"]).all()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("data.server.per_class=0", r"per_class is 0, but MR trains .*; raise data.server.per_cl"),
        ("data.server.per_class=1", r"per_class is 1, but MR .* to 2 or more"),
        ("server.optimizer=fedadam", r"server\.optimizer is fedadam, but MR"),
    ],
)
def test_what_cannot_work_is_refused_before_the_run(given, text):
    config = load_config("quickstart", ["method=mr", given])

    with pytest.raises(ConfigError, match=text):
        config.method.check(config, classes=10, dimensions={})


@pytest.mark.parametrize(
    "wrong", [{"patience": 0}, {"max_epochs": 0}, {"bins": 1}, {"largest_loss": 0.0}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        Mr(**wrong)
