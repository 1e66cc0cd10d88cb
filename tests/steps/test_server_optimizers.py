"""FedNova, FedAdam and FedProx in rounds of training: against FedAvg, loops, and by hand."""

import numpy as np
import pytest
import torch

from raysim.core.server_updates import effective_steps
from raysim.errors import ConfigError
from raysim.models.params import initial_tree
from raysim.models.training import TrainSettings, local_optimizer, train_client
from raysim.models.zoo import Logistic
from raysim.protocols import State
from raysim.seeding import stream
from raysim.steps.group_training import train_alone, train_round
from raysim.steps.server import ServerSettings, group_model

C = 3
KERNELS = ["autograd", "closed_form"]
EQUAL, UNEQUAL = (16, 16, 16), (4, 16, 40)
CLOSE = 2e-6
"""Directions travel as float32 and are multiplied by the number of steps again."""


def clients(bench, *overrides, sizes=UNEQUAL, kernel="autograd"):
    rng = stream(0, "test.server")
    train = ("train.epochs=2", "train.batch_size=8", "train.lr=0.2", f"train.kernel={kernel}")
    labels = [rng.integers(0, C, n) for n in sizes]
    made = bench(labels, "evaluate.every=100", *train, *overrides, classes=C)
    made.world.pixels = rng.normal(0, 1, made.world.pixels.shape).astype(np.float32)
    return made


def weights(made, state, group=0):
    return np.asarray(made.federation.get(state.models[group_model(group)])["trainable"])


def rounds(made, count=1, groups=(0, 0, 0)):
    state = State(groups=dict(enumerate(groups)))
    for number in range(count):
        state = train_round(made.round(number), state)
    return state


def trained_alone(bench, *overrides, **how):
    """The initial weights, and what every client makes of them by itself."""
    made = clients(bench, *overrides, **how)
    state = train_alone(made.round(), State(groups={0: 0, 1: 1, 2: 2}))
    start = initial_tree(made.config.model, (2, 2, 1), C, made.config.seed)["trainable"]
    return start.astype(np.float64), [weights(made, state, k).astype(np.float64) for k in range(3)]


# ---- FedNova ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fednova_is_fedavg_where_all_take_the_same_number_of_steps(bench, kernel, momentum):
    how = {"sizes": EQUAL, "kernel": kernel}
    given = f"train.momentum={momentum}"
    nova = clients(bench, given, "server.optimizer=fednova", **how)
    mean = clients(bench, given, **how)

    one, two = rounds(nova, 2), rounds(mean, 2)

    np.testing.assert_allclose(weights(nova, one), weights(mean, two), atol=CLOSE)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("rule", ["uniform", "samples"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fednova_follows_the_sheet_where_steps_differ(bench, kernel, rule, momentum):
    given = (f"train.momentum={momentum}", f"server.weights={rule}")
    start, own = trained_alone(bench, *given, kernel=kernel)
    made = clients(bench, *given, "server.optimizer=fednova", kernel=kernel)

    found = weights(made, rounds(made))

    # raysim/docs/sheets/optimizers.md: tau_k = 2 epochs of 1, 2 and 5 batches.
    steps = [effective_steps(tau, momentum) for tau in (2, 4, 10)]
    shares = np.array(UNEQUAL) / 60 if rule == "samples" else np.full(3, 1 / 3)
    tau = sum(p * a for p, a in zip(shares, steps, strict=True))
    direction = sum(p * (start - w) / a for p, w, a in zip(shares, own, steps, strict=True))
    np.testing.assert_allclose(found, start - tau * direction, atol=CLOSE)
    fedavg = sum(p * w for p, w in zip(shares, own, strict=True))
    assert not np.allclose(found, fedavg, atol=1e-3)


def test_fednova_runs_with_a_client_without_samples(bench):
    made = clients(bench, "server.optimizer=fednova", sizes=(0, 16, 16))

    assert np.isfinite(weights(made, rounds(made))).all()


@pytest.mark.parametrize(
    ("train", "text"),
    [
        ({"optimizer": "adam"}, r"train\.optimizer is adam; .*set train\.optimizer to sgd, or"),
        ({"proximal": 0.1}, r"train\.proximal is 0\.1; .*set train\.proximal to 0"),
    ],
)
def test_fednova_refuses_steps_it_cannot_count(train, text):
    with pytest.raises(ConfigError, match=rf"server\.optimizer is fednova.*{text}"):
        ServerSettings(optimizer="fednova").check(TrainSettings(**train))
    ServerSettings(optimizer="fedadam").check(TrainSettings(**train))


# ---- FedAdam ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_fedadam_takes_two_rounds_as_the_sheet_says(bench, kernel):
    knobs = "server={optimizer: fedadam, lr: 0.05, beta1: 0.8, beta2: 0.9, tau: 0.01}"
    made = clients(bench, knobs, kernel=kernel)
    start, own = trained_alone(bench, kernel=kernel)

    first = rounds(made)

    delta = np.mean(own, axis=0) - start
    m, v = 0.2 * delta, 0.1 * delta**2
    w = start + 0.05 * m / (np.sqrt(v) + 0.01)
    np.testing.assert_allclose(weights(made, first), w, atol=1e-6)

    second = train_round(made.round(1), first)

    plain = clients(bench, kernel=kernel)  # the mean of what the clients make of the new weights
    tree = made.federation.get(first.models["group/0"])
    state = State(groups=first.groups, models={"group/0": plain.federation.put(dict(tree))})
    mean = weights(plain, train_round(plain.round(1), state)).astype(np.float64)
    delta = mean - w
    m, v = 0.8 * m + 0.2 * delta, 0.9 * v + 0.1 * delta**2
    np.testing.assert_allclose(weights(made, second), w + 0.05 * m / (np.sqrt(v) + 0.01), atol=1e-6)
    assert not np.allclose(weights(made, second), mean, atol=1e-3)  # which FedAvg would take


def test_every_group_has_moments_of_its_own(bench):
    made = clients(bench, "server.optimizer=fedadam", "train.participation=0.34")

    state = rounds(made, groups=(0, 1, 1))

    (trained,) = [name for name in state.models if name.startswith("moments/")]
    group = int(trained.removeprefix("moments/"))
    start = initial_tree(made.config.model, (2, 2, 1), C, made.config.seed)["trainable"]
    assert weights(made, state, 1 - group).tobytes() == start.tobytes()
    assert weights(made, state, group).tobytes() != start.tobytes()


# ---- FedProx ---------------------------------------------------------------------------------


def test_without_a_data_gradient_weights_move_towards_the_received_ones():
    # raysim/docs/sheets/optimizers.md: from w != w_g and gradient zero, w <- w - lr mu (w - w_g).
    weight = torch.tensor([1.0, -2.0])
    update = local_optimizer([weight], TrainSettings(proximal=0.5, lr=1.0))
    weight += torch.tensor([4.0, 2.0])

    update([torch.zeros(2)])

    assert weight.tolist() == [3.0, -1.0]  # (5, 0) - 0.5 (4, 2): the reference is a copy


def test_the_second_step_is_pulled_back():
    rng = stream(0, "test.prox")
    images = rng.normal(0, 1, (8, 1, 2, 2)).astype(np.float32)
    tree = initial_tree(Logistic(), (2, 2, 1), C, 0)
    pushed = iter([True, False])

    def push_once(logits, batch):
        return (1.0 if next(pushed) else 0.0) * logits.sum()

    def after(steps, mu):
        nonlocal pushed
        pushed = iter([True, False])
        train = TrainSettings(epochs=steps, batch_size=8, lr=0.1, proximal=mu)
        labels, rng = np.zeros(8, np.int64), stream(0, "train")
        found, _ = train_client(
            Logistic(), tree, images, labels, train, rng=rng, classes=C, loss=push_once
        )
        return found["trainable"] - tree["trainable"]

    np.testing.assert_allclose(after(2, 0.5), (1 - 0.1 * 0.5) * after(1, 0.5), atol=1e-6)
    np.testing.assert_allclose(after(2, 0.0), after(1, 0.0), atol=1e-7)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_stronger_proximal_term_keeps_clients_closer(bench, kernel):
    def moved(mu):
        start, own = trained_alone(bench, f"train.proximal={mu}", kernel=kernel)
        return [np.abs(w - start).sum() for w in own]

    free, bound = moved(0.0), moved(2.0)

    assert all(b < f for f, b in zip(free, bound, strict=True))


# ---- every method ----------------------------------------------------------------------------

AVERAGING = ("fb_nll", "ifca_pfl", "ifca", "clipfl", "fedcorr")
QUICK = ("train.rounds=4", "train.epochs=1")


@pytest.mark.parametrize("method", AVERAGING)
def test_every_clustered_method_runs_with_every_optimizer(run_tiny, method):
    kinds = ("server.optimizer=mean", "server.optimizer=fednova", "server.optimizer=fedadam")

    found = [run_tiny(method, kind, base=QUICK) for kind in (*kinds, "train.proximal=0.1")]

    digests = [run.summary["digest"]["models"]["group/0"] for run in found]
    assert len(set(digests)) == 4
    assert "moments/0" in found[2].summary["digest"]["models"]


def test_moments_survive_a_stop(run_tiny):
    adam = "server.optimizer=fedadam"

    def stop(event) -> None:
        if event.kind == "round" and event.round == 3:
            raise KeyboardInterrupt

    whole = run_tiny("single", adam, base=QUICK)
    with pytest.raises(KeyboardInterrupt):
        run_tiny("single", adam, base=QUICK, folder="stopped", listeners=[stop])
    resumed = run_tiny("single", adam, base=QUICK, folder="stopped", resume=True)

    assert resumed.summary["digest"] == whole.summary["digest"]
