"""ClipFL's own study: every server optimiser, its loss, its number, other validation images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from raysim.config import load_config
from raysim.core.server_updates import effective_steps
from raysim.errors import ConfigError, DataError
from raysim.methods.clipfl import ClipFl
from raysim.models.losses import SmoothedCrossEntropy
from raysim.models.params import initial_tree
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError
from raysim.steps.group_training import train_alone
from raysim.steps.pruning import score_round
from raysim.steps.server import group_model
from raysim.steps.validation import VALIDATION, ValidationSettings, labelled_images, with_validation

C, SIZES, KEPT = 3, (8, 16, 24, 40), 2
IN_ONE = dict.fromkeys(range(4), 0)


def clients(bench, *overrides):
    """Four clients with right labels but the last; the server has every second image."""
    quiet = ("evaluate.every=100", "train.epochs=2", "train.batch_size=8", "train.lr=0.5")
    made = bench([[0] * n for n in SIZES], *quiet, *overrides, classes=C)
    pixels = stream(0, "test.clipfl").normal(0, 1, made.world.pixels.shape).astype(np.float32)
    made.world.pixels = pixels
    true = pixels[:, 0, 0, :].argmax(axis=1) + (pixels[:, 0, 1, 0] > 1)
    for k, ids in enumerate(made.ids):
        made.labels[k][:] = (true[ids] + (k == 3)) % C
    made.clean = (np.arange(0, len(pixels), 2), true[::2] % C)
    return made


def weights(made, state, group=0):
    tree = made.federation.get(state.models[group_model(group)])
    return np.asarray(tree["trainable"], dtype=np.float64)


def start_and_own(bench, *overrides):
    """The initial weights, and what every client makes of them by itself."""
    made = clients(bench, *overrides)
    state = train_alone(made.round(), State(groups={k: k for k in range(4)}))
    start = initial_tree(made.config.model, (2, 2, 1), C, made.config.seed)["trainable"]
    return start.astype(np.float64), [weights(made, state, k) for k in range(4)]


def scored(made, state=None):
    """Return the state after a round of Phase I, and the clients that were merged."""
    context = made.round()
    server = replace(made.config.server, weights="samples")
    state = State(groups=IN_ONE) if state is None else state
    state = score_round(context, state, range(4), kept=KEPT, server=server)
    accuracy = context.entry["validation"]
    return state, sorted(range(4), key=lambda k: -accuracy[str(k)])[:KEPT]


# ---- Phase I merges the kept clients by every server optimiser -------------------------------


@pytest.mark.parametrize("proximal", [0.0, 0.5])
def test_fedavg_and_fedprox_average_the_kept_clients(bench, proximal):
    given = f"train.proximal={proximal}"
    _, own = start_and_own(bench, given)
    made = clients(bench, given)

    state, best = scored(made)

    assert 3 not in best
    share = np.array([SIZES[k] for k in best]) / sum(SIZES[k] for k in best)
    expected = sum(p * own[k] for p, k in zip(share, best, strict=True))
    np.testing.assert_allclose(weights(made, state), expected, atol=1e-6)


def test_fedprox_differs_from_fedavg(bench):
    made, pulled = clients(bench), clients(bench, "train.proximal=0.5")

    assert not np.allclose(
        weights(made, scored(made)[0]), weights(pulled, scored(pulled)[0]), atol=1e-3
    )


def test_fednova_normalises_the_kept_clients(bench):
    start, own = start_and_own(bench)
    made = clients(bench, "server.optimizer=fednova")

    state, best = scored(made)

    # Two epochs of 1, 2, 3 and 5 batches; FedNova over the kept clients alone.
    steps = [effective_steps(tau, 0.0) for tau in (2, 4, 6, 10)]
    share = dict(
        zip(best, np.array([SIZES[k] for k in best]) / sum(SIZES[k] for k in best), strict=True)
    )
    tau = sum(share[k] * steps[k] for k in best)
    direction = sum(share[k] * (start - own[k]) / steps[k] for k in best)
    assert steps[best[0]] != steps[best[1]]
    np.testing.assert_allclose(weights(made, state), start - tau * direction, atol=2e-6)


def test_fedadam_moves_towards_the_kept_clients_and_keeps_its_moments(bench):
    knobs = "server={optimizer: fedadam, lr: 0.05, beta1: 0.8, beta2: 0.9, tau: 0.01}"
    start, own = start_and_own(bench)
    made = clients(bench, knobs)

    state, best = scored(made)

    share = np.array([SIZES[k] for k in best]) / sum(SIZES[k] for k in best)
    delta = sum(p * own[k] for p, k in zip(share, best, strict=True)) - start
    first, second = 0.2 * delta, 0.1 * delta**2
    expected = start + 0.05 * first / (np.sqrt(second) + 0.01)
    np.testing.assert_allclose(weights(made, state), expected, atol=1e-6)
    moments = made.federation.get(state.models["moments/0"])
    np.testing.assert_allclose(moments["first"], first, atol=1e-6)
    later, _ = scored(made, state)
    again = made.federation.get(later.models["moments/0"])["first"]
    assert np.abs(again - 0.8 * first).max() > 1e-4  # and goes on from them


# ---- the study's loss and number ---------------------------------------------------------------


def test_the_studys_loss_is_a_setting():
    config = load_config("quickstart", ["method={name: clipfl, loss: {temperature: 10}}"])

    assert config.method.loss == SmoothedCrossEntropy(smoothing=0.1, temperature=10.0)
    assert config.method._local(SimpleConfig(config))["loss"] == config.method.loss
    plain = load_config("quickstart", ["method=clipfl"])
    assert "loss" not in plain.method._local(SimpleConfig(plain))


class SimpleConfig:
    """A context as far as local settings go."""

    def __init__(self, config) -> None:
        self.config = config


def test_the_result_has_the_mean_of_the_last_ten_rounds(run_tiny):
    result = run_tiny("clipfl", base=("train.rounds=12", "train.epochs=1"))

    found = [r["accuracy"]["mean"] for r in result.records if "accuracy" in r]
    assert len(found) == 12
    assert result.summary["accuracy_last10"] == pytest.approx(np.mean(found[2:]))
    assert result.summary["accuracy_last10"] != result.summary["accuracy"]["mean"]


# ---- other validation images -------------------------------------------------------------------


def npz(tmp_path, **changes):
    """A file of six images of 2 x 2 pixels, two of every class."""
    images = np.arange(24, dtype=np.uint8).reshape(6, 2, 2, 1)
    arrays = {"images": images, "labels": np.array([0, 1, 2, 2, 1, 0]), **changes}
    path = tmp_path / "made.npz"
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return str(path)


def test_models_are_scored_on_the_images_of_the_file(bench, tmp_path):
    made = clients(bench)
    made.world.prepared = lambda images: (images / 10 - 1).transpose(0, 3, 1, 2).astype(np.float32)
    context = made.round()
    how = ValidationSettings(kind="file", path=npz(tmp_path))

    state = with_validation(context, State(groups=IN_ONE), how)
    made.clean = (np.zeros(0, int), np.zeros(0, int))  # not needed any more
    score_round(context, state, range(4), kept=1)

    _, own = start_and_own(bench)
    images = np.arange(24).reshape(6, 4) / 10 - 1
    for k in range(4):
        found = (images @ own[k][:12].reshape(C, 4).T + own[k][12:]).argmax(axis=1)
        expected = (found == [0, 1, 2, 2, 1, 0]).mean()
        assert context.entry["validation"][str(k)] == pytest.approx(expected)
    assert context.entry["validation_file"]["images"] == 6


def test_generated_images_are_drawn_once_and_dropped_after_phase_1(bench):
    made = clients(bench)
    how = ValidationSettings(kind="generated", per_class=5, components=2)
    method = ClipFl(score_rounds=2, kept=2, validation=how)
    step = method.stages(made.config)[1].step

    state = step(made.round(0), State(groups=IN_ONE))
    drawn = made.federation.get(state.models[VALIDATION])
    later = step(made.round(1, last=True), state)

    assert drawn["images"].shape == (15, 1, 2, 2)
    assert drawn["labels"].tolist() == [0] * 5 + [1] * 5 + [2] * 5
    pixels = made.world.pixels[made.clean[0]]
    assert np.ptp(drawn["images"]) <= np.ptp(pixels)
    assert VALIDATION not in later.models
    assert len(later.values["survivors"]) == 2


@pytest.mark.parametrize("kind", ["file", "generated"])
def test_a_run_with_other_images_resumes_to_the_same_bits(run_tiny, tmp_path, kind):
    path = None
    if kind == "file":
        from sklearn.datasets import load_digits

        pixels = (load_digits().images[:200] * 15).astype(np.uint8)[..., None]
        path = npz(tmp_path, images=pixels, labels=load_digits().target[:200])
    extra = f"method.validation={{kind: {kind}, path: {path or 'null'}}}"
    base = ("train.rounds=8", "train.epochs=1")

    def stop(event) -> None:
        if event.kind == "round" and event.stage == "score":
            raise KeyboardInterrupt

    unbroken = run_tiny("clipfl", extra, base=base)
    with pytest.raises(KeyboardInterrupt):
        run_tiny("clipfl", extra, base=base, folder="stopped", listeners=[stop])
    resumed = run_tiny("clipfl", extra, base=base, folder="stopped", resume=True)

    assert resumed.summary["digest"] == unbroken.summary["digest"]
    clean = run_tiny("clipfl", base=base)
    assert resumed.summary["digest"] != clean.summary["digest"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"images": None}, r"not an npz with images and labels .*; write it as np.savez"),
        ({"images": np.zeros((6, 2, 2, 1))}, r"images must be uint8 \(N, H, W, C\), got float64"),
        ({"images": np.zeros((6, 2), np.uint8)}, r"uint8 .*, got uint8 \(6, 2\); write"),
        ({"labels": np.zeros(5, int)}, r"labels must be integers \(6,\), .* got int64 \(5,\)"),
        ({"labels": np.zeros(6)}, r"labels must be integers .* got float64"),
        ({"labels": np.array([0, 1, 2, 3, 1, 0])}, r"classes 0 to 2, got 3; number"),
        ({"labels": np.array([0, 1, 1, 0, 1, 0])}, r"class 2 has no image \(1 of 3.*; add"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, changes, text):
    with pytest.raises(DataError, match=text):
        labelled_images(npz(tmp_path, **changes), C)


def test_images_of_another_size_are_refused_before_training(bench, tmp_path):
    made = clients(bench)
    path = npz(tmp_path, images=np.zeros((6, 5, 5, 3), np.uint8))

    with pytest.raises(
        DataError, match=r"= \(2, 2, 1\), as the dataset's, got \(5, 5, 3\); resize"
    ):
        with_validation(
            made.round(), State(groups=IN_ONE), ValidationSettings(kind="file", path=path)
        )


def test_a_missing_file_is_refused_before_the_run(tmp_path):
    where = tmp_path / "none.npz"
    given = f"method={{name: clipfl, validation: {{kind: file, path: {where}}}}}"
    config = load_config("quickstart", [given, "data.server.per_class=0"])

    with pytest.raises(ConfigError, match=r"validation\.path: there is no file .*none\.npz"):
        config.method.check(config, classes=C, dimensions={})
    np.savez(where, images=np.zeros((3, 8, 8), np.uint8), labels=np.arange(3))
    config.method.check(config, classes=C, dimensions={})  # no clean image is needed


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"kind": "file"}, "path must be set with kind file"),
        ({"path": "a.npz"}, "path needs kind file, got 'a.npz'"),
        ({"per_class": 0}, "per_class must be at least 1"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong, text):
    with pytest.raises(SettingError, match=text):
        ValidationSettings(**wrong)
