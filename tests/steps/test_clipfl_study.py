"""ClipFL's own study: its loss, its number, validation images of a file and drawn ones."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from raysim.config import load_config
from raysim.errors import ConfigError, DataError
from raysim.methods.clipfl import (
    VALIDATION,
    ClipFl,
    ValidationSettings,
    drawn_images,
    labelled_images,
)
from raysim.models.losses import SmoothedCrossEntropy
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError
from raysim.steps.group_training import train_alone
from raysim.steps.server import group_model

C, SIZES = 3, (8, 16, 24, 40)
IN_ONE = dict.fromkeys(range(4), 0)
CENTERS = np.array([[3.0, 0.0, 0.0, 1.0], [-3.0, 0.0, 0.0, 1.0], [0.0, 4.0, 0.0, 1.0]])
SPREAD = np.array([0.5, 0.2, 0.1, 0.0])


def clients(bench):
    """Four clients with right labels; the server has every second image."""
    quiet = ("evaluate.every=100", "train.epochs=2", "train.batch_size=8", "train.lr=0.5")
    made = bench([[0] * n for n in SIZES], *quiet, classes=C)
    pixels = stream(0, "test.clipfl").normal(0, 1, made.world.pixels.shape).astype(np.float32)
    made.world.pixels = pixels
    true = pixels[:, 0, 0, :].argmax(axis=1) + (pixels[:, 0, 1, 0] > 1)
    for k, ids in enumerate(made.ids):
        made.labels[k][:] = true[ids]
    made.clean = (np.arange(0, len(pixels), 2), true[::2])
    return made


# ---- the study's loss and number ---------------------------------------------------------------


def test_the_studys_loss_is_a_setting():
    config = load_config("quickstart", ["method={name: clipfl, loss: {temperature: 10}}"])

    assert config.method.loss == SmoothedCrossEntropy(smoothing=0.1, temperature=10.0)
    context = SimpleNamespace(config=config)
    assert config.method.local_training(context)["loss"] == config.method.loss
    plain = load_config("quickstart", ["method=clipfl"])
    assert "loss" not in plain.method.local_training(SimpleNamespace(config=plain))


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
    made.clean = (np.zeros(0, int), np.zeros(0, int))  # not needed
    context = made.round()
    how = ValidationSettings(kind="file", path=npz(tmp_path))

    ClipFl(kept=1, validation=how).pre_pruning(context, State(groups=IN_ONE))

    alone = train_alone(made.round(), State(groups={k: k for k in range(4)}))
    images = np.arange(24).reshape(6, 4) / 10 - 1
    for k in range(4):
        own = made.federation.get(alone.models[group_model(k)])["trainable"].astype(float)
        found = (images @ own[:12].reshape(C, 4).T + own[12:]).argmax(axis=1)
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
        ({"images": None}, r"must hold images, labels, got labels; write it as np.savez"),
        (
            {"images": np.zeros((6, 2, 2, 1))},
            r"images must be uint8 images .*, got float64",
        ),
        ({"images": np.zeros((6, 2), np.uint8)}, r"uint8 .*, got uint8 \(6, 2\); write"),
        (
            {"labels": np.zeros(5, int)},
            r"labels must be integers \(6,\), .* got int64 \(5,\)",
        ),
        ({"labels": np.zeros(6)}, r"labels must be integers .* got float64"),
        ({"labels": np.array([0, 1, 2, 3, 1, 0])}, r"classes 0 to 2, got 0 to 3; write"),
        ({"labels": np.array([0, 1, 1, 0, 1, 0])}, r"class 2 has no image \(1 of 3.*; add"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, changes, text):
    with pytest.raises(DataError, match=text):
        labelled_images(npz(tmp_path, **changes), C)


def test_images_of_another_size_are_refused_before_training(bench, tmp_path):
    path = npz(tmp_path, images=np.zeros((6, 5, 5, 3), np.uint8))
    method = ClipFl(validation=ValidationSettings(kind="file", path=path))

    with pytest.raises(
        DataError, match=r"= \(2, 2, 1\), as the dataset's, got \(5, 5, 3\); resize"
    ):
        method.pre_pruning(clients(bench).round(), State(groups=IN_ONE))


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


# ---- images drawn around those of a class ------------------------------------------------------


def seen(count=400):
    labels = np.repeat([0, 2, 5], count)
    noise = stream(0, "test.generator").normal(size=(3 * count, 4)) * SPREAD
    return (np.repeat(CENTERS, count, axis=0) + noise).reshape(-1, 1, 2, 2), labels


def drawn(images, labels, *, per_class=3000, components=4):
    found = drawn_images(
        images=images,
        labels=labels,
        per_class=per_class,
        components=components,
        rng=stream(1, "test.generator"),
    )
    return found["images"], found["labels"]


def test_every_class_keeps_its_mean_and_all_share_the_spread():
    images, labels = drawn(*seen())

    assert np.bincount(labels).tolist() == [3000, 0, 3000, 0, 0, 3000]
    for center, c in zip(CENTERS, (0, 2, 5), strict=True):
        own = images[labels == c].reshape(-1, 4)
        np.testing.assert_allclose(own.mean(axis=0), center, atol=0.1)  # of 400 images
        np.testing.assert_allclose(own.std(axis=0), SPREAD, atol=0.06)


def test_nothing_leaves_the_range_of_the_images():
    images, labels = seen(20)
    found, _ = drawn(images, labels)

    assert found.min() >= images.min()
    assert found.max() <= images.max()
    assert found.dtype == images.dtype
    assert found.shape[1:] == (1, 2, 2)


def test_few_components_flatten_the_rest():
    # Two directions tell three centres apart; the last pixel never varies.
    found, _ = drawn(*seen(), components=2)

    rank = np.linalg.matrix_rank(found.reshape(-1, 4) - found.reshape(-1, 4).mean(axis=0), tol=1e-3)
    assert rank == 2


def test_one_image_per_class_is_repeated():
    images = stream(0, "test.generator").normal(size=(3, 1, 2, 2)).astype(np.float32)

    found, labels = drawn(images, np.array([1, 0, 2]), per_class=2)

    np.testing.assert_allclose(found[labels == 1][0], images[0], atol=1e-5)
    np.testing.assert_allclose(found[labels == 0][1], images[1], atol=1e-5)


def test_equal_images_are_no_trouble():
    found, _ = drawn(np.ones((4, 1, 2, 2)), np.array([0, 0, 1, 1]), per_class=2)

    np.testing.assert_allclose(found, 1.0)
