"""ClipFL: who is merged, who is counted, who is pruned, and what is sent."""

import json
from dataclasses import replace

import numpy as np
import pytest

from raysim.config import load_config
from raysim.core.server_updates import effective_steps
from raysim.errors import ConfigError
from raysim.methods.clipfl import ClipFl, best_clients
from raysim.models.losses import SmoothedCrossEntropy
from raysim.models.params import initial_tree
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError
from raysim.steps.group_training import train_alone, train_round
from raysim.steps.server import group_model

C, SIZES = 3, (10, 20, 30, 40)
MODEL_BYTES = (4 * C + C) * 4
"""Logistic regression on 2x2 images."""
IN_ONE = dict.fromkeys(range(4), 0)


def clients(bench, *overrides, sizes=SIZES):
    """Clean clients and, last, one whose labels are all shifted; the server has 0's images."""
    quiet = ("evaluate.every=100", "train.epochs=2", "train.batch_size=8", "train.lr=0.5")
    made = bench([[0] * n for n in sizes], *quiet, *overrides, classes=C)
    pixels = stream(0, "test.clipfl").normal(0, 1, made.world.pixels.shape).astype(np.float32)
    made.world.pixels = pixels
    true = pixels[:, 0, 0, :].argmax(axis=1) + (pixels[:, 0, 1, 0] > 1)
    for k, ids in enumerate(made.ids):
        made.labels[k][:] = (true[ids] + (k == len(sizes) - 1)) % C
    made.clean = (np.arange(0, len(pixels), 2), true[::2] % C)
    return made


def weights(made, state, group=0):
    return np.asarray(made.federation.get(state.models[group_model(group)])["trainable"])


def trained_alone(made):
    """What every client makes of the initial model by itself."""
    count = len(made.labels)
    state = train_alone(made.round(), State(groups={k: k for k in range(count)}))
    return [weights(made, state, k).astype(np.float64) for k in range(count)]


def initial(made):
    tree = initial_tree(made.config.model, (2, 2, 1), C, made.config.seed)
    return tree["trainable"].astype(float)


def scored(made, state=None):
    """Return the state after a round of Phase I, and the clients that were always merged."""
    state = ClipFl(kept=2).pre_pruning(made.round(), state or State(groups=IN_ONE))
    counts = state.values["candidacy"]
    return state, [k for k in range(4) if counts[str(k)]["score"] == 0]


def shares(best):
    """How much every merged client counts: by its samples."""
    return {k: SIZES[k] / sum(SIZES[i] for i in best) for k in best}


def scores(*pairs):
    return {k: {"accuracy": a, "validation_loss": loss} for k, (a, loss) in enumerate(pairs)}


def pruned(made, candidacy, *, rate=0.5, groups=None, per_participation=False):
    state = State(groups=groups or IN_ONE, values={"candidacy": candidacy})
    context = made.round()
    state = ClipFl(prune_rate=rate, per_participation=per_participation).prune(context, state)
    found = context.entry["noisy_clients"]["found"]
    assert sorted([*found, *state.values["survivors"]]) == sorted(state.groups)
    return found


def counted(score, rounds, accuracy):
    return {"score": score, "rounds": rounds, "accuracy": accuracy}


# ---- scores ----------------------------------------------------------------------------------


def test_the_candidacy_of_clients_is_scored_as_their_noisiness(bench, monkeypatch):
    made, given = clients(bench), []
    context = made.round()
    judge = lambda *told, labels: given.append(told) or {}  # noqa: E731
    monkeypatch.setattr(context.evaluator, "noisy_clients", judge)
    candidacy = {"0": counted(0, 2, 1.0), "1": counted(3, 4, 1.0), "3": counted(2, 2, 1.0)}
    state = State(groups=IN_ONE, values={"candidacy": candidacy})

    ClipFl(per_participation=True).prune(context, state)

    assert given == [([1, 3], {0: 0.0, 1: 0.75, 2: 0.0, 3: 1.0}, None)]  # 2 never took part


# ---- phase I ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "best"), [(1, [1]), (2, [1, 3]), (None, [1, 3]), (9, [1, 3, 0, 2])]
)
def test_the_best_have_the_highest_validation_accuracy(kept, best):
    found = best_clients(scores((0.5, 1.0), (0.9, 1.0), (0.1, 1.0), (0.6, 1.0)), range(4), kept)

    assert found == best


def test_ties_of_accuracy_go_to_the_lower_loss_and_then_to_the_lower_client():
    found = best_clients(scores((0.5, 2.0), (0.5, 1.0), (0.5, 2.0)), [0, 1, 2], 3)

    assert found == [1, 0, 2]


def test_half_of_an_odd_group_is_rounded_up():
    assert best_clients(scores((0.1, 0), (0.2, 0), (0.3, 0)), [0, 1, 2], None) == [2, 1]


def test_a_round_merges_the_best_by_their_samples_and_counts_the_others(bench):
    made = clients(bench)
    own = trained_alone(made)
    context = made.round()

    state = ClipFl(kept=2).pre_pruning(context, State(groups=IN_ONE))

    accuracy = context.entry["validation"]
    images = made.world.pixels[made.clean[0]].reshape(-1, 4)
    for k in range(4):  # the score is the accuracy of the client's own model on the clean images
        found = (images @ own[k][:12].reshape(C, 4).T + own[k][12:]).argmax(axis=1)
        assert accuracy[str(k)] == (found == made.clean[1]).mean()
    best = sorted(range(4), key=lambda k: -accuracy[str(k)])[:2]
    assert 3 not in best  # the noisy client
    expected = sum(p * own[k] for k, p in shares(best).items())
    np.testing.assert_allclose(weights(made, state), expected, atol=1e-6)
    candidacy = state.values["candidacy"]
    assert {k for k in range(4) if candidacy[str(k)]["score"] == 0} == set(best)
    assert candidacy["3"] == counted(1, 1, accuracy["3"])


def test_scores_add_up_over_rounds_and_survive_a_commit(bench):
    made = clients(bench, "train.participation=0.5")
    method, state = ClipFl(score_rounds=9, kept=1), State(groups=IN_ONE)
    step = method.stages(made.config)[1].step
    for number in range(4):
        state = step(
            made.round(number), replace(state, values=json.loads(json.dumps(state.values)))
        )

    found = state.values["candidacy"].values()
    assert sum(own["rounds"] for own in found) == 4 * 2
    assert sum(own["score"] for own in found) == 4 * 1  # one of two is merged, the other counted


def test_merging_everyone_is_fedavg_and_merging_half_is_not(bench):
    made = clients(bench)
    fedavg = weights(made, train_round(made.round(), State(groups=IN_ONE)))

    everyone, half = (
        ClipFl(kept=kept, weights="uniform").pre_pruning(made.round(), State(groups=IN_ONE))
        for kept in (4, None)
    )

    np.testing.assert_allclose(weights(made, everyone), fedavg, atol=1e-6)
    assert not np.allclose(weights(made, half), fedavg, atol=1e-3)


def test_a_process_that_lost_the_trained_models_trains_them_again_to_the_same_bits(
    bench, monkeypatch
):
    made, forgetful = clients(bench), clients(bench)
    reduce = forgetful.federation.reduce

    def forget_first(*arguments, **shared):
        forgetful.federation.map(lambda client, memory, _: (memory, client.scratch.clear()))
        return reduce(*arguments, **shared)

    monkeypatch.setattr(forgetful.federation, "reduce", forget_first)

    one, two = (
        ClipFl(kept=2).pre_pruning(m.round(), State(groups=IN_ONE)) for m in (made, forgetful)
    )

    assert weights(made, one).tobytes() == weights(forgetful, two).tobytes()


# ---- Phase I merges the kept clients by every server optimiser -------------------------------


def test_fedprox_averages_the_kept_clients(bench):
    made = clients(bench, "train.proximal=0.5")
    own = trained_alone(made)

    state, best = scored(made)

    assert 3 not in best
    expected = sum(p * own[k] for k, p in shares(best).items())
    np.testing.assert_allclose(weights(made, state), expected, atol=1e-6)


def test_fedprox_differs_from_fedavg(bench):
    made, pulled = clients(bench), clients(bench, "train.proximal=0.5")

    assert not np.allclose(
        weights(made, scored(made)[0]), weights(pulled, scored(pulled)[0]), atol=1e-3
    )


def test_fednova_normalises_the_kept_clients(bench):
    plain, made = clients(bench), clients(bench, "server.optimizer=fednova")
    start, own = initial(plain), trained_alone(plain)

    state, best = scored(made)

    # Two epochs of 2, 3, 4 and 5 batches; FedNova over the kept clients alone.
    steps = [effective_steps(tau, 0.0) for tau in (4, 6, 8, 10)]
    share = shares(best)
    tau = sum(share[k] * steps[k] for k in best)
    direction = sum(share[k] * (start - own[k]) / steps[k] for k in best)
    assert steps[best[0]] != steps[best[1]]
    np.testing.assert_allclose(weights(made, state), start - tau * direction, atol=2e-6)


def test_fedadam_moves_towards_the_kept_clients_and_keeps_its_moments(bench):
    knobs = "server={optimizer: fedadam, lr: 0.05, beta1: 0.8, beta2: 0.9, tau: 0.01}"
    plain, made = clients(bench), clients(bench, knobs)
    start, own = initial(plain), trained_alone(plain)

    state, best = scored(made)

    delta = sum(p * own[k] for k, p in shares(best).items()) - start
    first, second = 0.2 * delta, 0.1 * delta**2
    expected = start + 0.05 * first / (np.sqrt(second) + 0.01)
    np.testing.assert_allclose(weights(made, state), expected, atol=1e-6)
    moments = made.federation.get(state.models["moments/0"])
    np.testing.assert_allclose(moments["first"], first, atol=1e-6)
    later, _ = scored(made, state)
    again = made.federation.get(later.models["moments/0"])["first"]
    assert np.abs(again - 0.8 * first).max() > 1e-4  # and goes on from them


# ---- phase II --------------------------------------------------------------------------------


def test_the_half_with_the_highest_scores_is_pruned(bench):
    candidacy = {str(k): counted(s, 9, 1.0) for k, s in enumerate((3, 1, 7, 2))}

    assert pruned(clients(bench), candidacy) == [0, 2]
    assert pruned(clients(bench), candidacy, rate=0.74) == [0, 2]  # floor(2.96)
    assert pruned(clients(bench), candidacy, rate=0.0) == []


def test_ties_go_to_the_lower_mean_validation_accuracy(bench):
    # Means 0.5, 0.4, 0.45 and 0.9 over the rounds each took part in; all scores are 2.
    sums = ((2, 1.0), (5, 2.0), (4, 1.8), (3, 2.7))
    candidacy = {str(k): counted(2, rounds, total) for k, (rounds, total) in enumerate(sums)}

    assert pruned(clients(bench), candidacy) == [1, 2]


def test_scores_may_be_divided_by_the_rounds_of_a_client(bench):
    # 4 of 8, 3 of 4, 2 of 8, 1 of 1: raw counts blame 0 and 1, shares blame 1 and 3.
    found = ((4, 8), (3, 4), (2, 8), (1, 1))
    candidacy = {str(k): counted(s, n, 0.0) for k, (s, n) in enumerate(found)}

    assert pruned(clients(bench), candidacy) == [0, 1]
    assert pruned(clients(bench), candidacy, per_participation=True) == [1, 3]


def test_who_never_took_part_survives(bench):
    candidacy = {"0": counted(0, 3, 2.7), "1": counted(0, 3, 2.4), "3": counted(0, 3, 2.6)}

    assert pruned(clients(bench), candidacy) == [1, 3]


def test_every_group_is_pruned_by_itself_and_keeps_someone(bench):
    candidacy = {str(k): counted(k, 9, 1.0) for k in range(4)}
    groups = {0: 0, 1: 0, 2: 0, 3: 1}

    assert pruned(clients(bench), candidacy, groups=groups) == [2]
    assert pruned(clients(bench), candidacy, groups=groups, rate=1 - 1e-12) == [1, 2]


# ---- phase III and the whole -----------------------------------------------------------------


def run(made, method):
    state, entries = State(), {}
    for stage in method.stages(made.config):
        for number in range(stage.rounds):
            last = number + 1 == stage.rounds
            context = made.round(number, last=last, stage=stage.name)
            state = stage.step(context, state)
            entries.setdefault(stage.name, []).append(context.entry)
    return state, entries


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 2), (0.5, 1), (0.4, 1)])
def test_phase_3_sends_models_to_and_from_the_survivors_only(bench, fraction, count):
    made = clients(bench, "train.rounds=4")

    state, entries = run(made, ClipFl(score_rounds=2, post_fraction=fraction))

    assert len(state.values["survivors"]) == 2
    assert 3 not in state.values["survivors"]
    for name, clients_in in (("score", 4), ("train", count)):
        sent = {"model": clients_in * MODEL_BYTES}
        assert [e["bytes"] for e in entries[name]] == [{"up": sent, "down": sent}] * 2


def test_moments_of_fedadam_go_through_all_phases(bench):
    made = clients(bench, "train.rounds=3", "server.optimizer=fedadam")
    stages = ClipFl(score_rounds=1).stages(made.config)
    state = stages[1].step(made.round(last=True), State(groups=IN_ONE))
    before = made.federation.get(state.models["moments/0"])["second"]

    state = stages[2].step(made.round(), state)

    # v <- 0.99 v + 0.01 delta^2 is at least 0.99 v; from zero it would be much smaller.
    after = made.federation.get(state.models["moments/0"])["second"]
    assert (after >= 0.98 * before).all()
    assert (before > 0).any()


def test_weights_and_loss_are_the_methods_own(bench):
    made = clients(bench, "train.rounds=2")
    default, _ = run(made, ClipFl())
    uniform, _ = run(made, ClipFl(weights="uniform"))
    smoothed, _ = run(made, ClipFl(loss=SmoothedCrossEntropy()))

    found = {weights(made, state).tobytes() for state in (default, uniform, smoothed)}
    assert len(found) == 3


@pytest.mark.parametrize(("rounds", "scored"), [(80, 20), (2, 1), (7, 1)])
def test_a_quarter_of_the_rounds_is_phase_1(rounds, scored):
    config = load_config("quickstart", ["method=clipfl", f"train.rounds={rounds}"])

    found = [(stage.name, stage.rounds) for stage in config.method.stages(config)]

    assert found == [("group", 1), ("score", scored), ("train", rounds - scored)]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            ["data.server.per_class=0"],
            r"per_class is 0, but ClipFL .*; raise data.server.per_class",
        ),
        (["train.rounds=1"], r"train.rounds is 1, but ClipFL.* at least 2; raise train.rounds"),
        (["method.score_rounds=20"], r"train.rounds is 20, but .* at least 21; .* or shorten"),
    ],
)
def test_what_cannot_work_is_refused_before_the_run(given, text):
    config = load_config("quickstart", ["method=clipfl", *given])

    with pytest.raises(ConfigError, match=text):
        config.method.check(config, classes=10, dimensions={})


def test_pruning_everyone_is_refused():
    with pytest.raises(SettingError, match=r"prune_rate must be in \[0, 1\), got 1.*e.g. 0.5"):
        ClipFl(prune_rate=1)


@pytest.mark.parametrize(
    ("share", "kept", "ok"), [(1.0, 12, False), (1.0, 11, True), (0.5, 6, False)]
)
def test_keeping_everybody_who_takes_part_is_refused(share, kept, ok):
    config = load_config(
        "quickstart", ["method=clipfl", f"method.kept={kept}", f"train.participation={share}"]
    )
    if ok:
        config.method.check(config, classes=10, dimensions={})
        return
    with pytest.raises(ConfigError, match=rf"method\.kept is {kept}, .*; lower method\.kept"):
        config.method.check(config, classes=10, dimensions={})


def test_the_cleanest_survivors_train_if_not_all_do(bench):
    made = clients(bench, "train.rounds=4")
    candidacy = {"0": counted(1, 2, 1.0), "1": counted(0, 2, 1.0), "2": counted(0, 2, 1.5)}
    values = {"candidacy": candidacy, "survivors": [0, 1, 2]}
    context = made.round()

    state = ClipFl(post_fraction=0.3).round(context, State(groups=IN_ONE, values=values))

    # Client 2: as few points as client 1, and better on the server's images.
    assert context.entry["bytes"]["up"] == {"model": MODEL_BYTES}
    np.testing.assert_allclose(weights(made, state), trained_alone(made)[2], atol=1e-6)
