"""Label repair over a federation: the same as in one place, and what it sends."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.config import load_config
from raysim.core.calibration import calibrate
from raysim.core.relabeling import class_subspaces, relabel
from raysim.errors import ConfigError
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError
from raysim.steps import correction
from raysim.steps.correction import CorrectionSettings, choose_knobs, correct_labels
from raysim.steps.local_training import current_labels

C, D, PER_CLASS = 3, 8, 40
SET = {"rank": 2, "projection_rank": 3, "threshold": 0.6}
TRUE = [
    [0] * 30 + [1] * 30,
    [2] * 30 + [1] * 30,
    [0] * 15 + [2] * 15,
    [1] * 5 + [2] * 25,
]
GIVEN = [
    [0] * 30 + [1] * 30,  # nothing wrong
    [0] * 30 + [1] * 30,  # a whole class under another name: phase 1
    [0] * 30,  # a mixture: phase 2
    [1] * 5 + [0] * 25,  # a class too small for phase 1, and one under another name
]


def features_of(labels, rng) -> np.ndarray:
    """Class c lies along axes 2c (its mean) and 2c + 1, with a little of everything."""
    labels = np.asarray(labels)
    rows = rng.normal(0, 0.05, (len(labels), D))
    rows[np.arange(len(labels)), 2 * labels] += 3
    rows[np.arange(len(labels)), 2 * labels + 1] += rng.normal(0, 1, len(labels))
    return rows.astype(np.float32)


def clients(bench, true=TRUE, given=GIVEN, per_class: int = PER_CLASS):
    rng = stream(0, "test.correction")
    made = bench(given, classes=C)
    own = np.concatenate([features_of(labels, rng) for labels in true])
    clean_labels = np.repeat(np.arange(C), per_class)
    made.clean = (np.arange(len(own), len(own) + len(clean_labels)), clean_labels)
    made.world.by_use["correction"] = np.concatenate([own, features_of(clean_labels, rng)])
    return made


def corrected(made) -> dict[int, np.ndarray]:
    """The labels each client would train on now."""
    return made.federation.map(lambda client, memory, _: (memory, current_labels(client, memory)))


def expected(made, how: CorrectionSettings, k: int):
    rows, (ids, labels) = made.world.by_use["correction"], made.clean
    subspaces = class_subspaces(rows[ids], labels, max(how.rank, how.projection_rank))
    return relabel(
        rows[made.ids[k]],
        made.labels[k],
        subspaces,
        rank=how.rank,
        projection_rank=how.projection_rank,
        threshold=how.threshold,
        min_class_size=how.min_class_size,
    )


@pytest.mark.parametrize("min_class_size", [0, 20])
@pytest.mark.parametrize("ranks", [(2, 3), (3, 2), (1, 1)])
def test_every_client_gets_the_labels_of_the_core(bench, ranks, min_class_size):
    made = clients(bench)
    how = CorrectionSettings(
        rank=ranks[0], projection_rank=ranks[1], threshold=0.6, min_class_size=min_class_size
    )

    correct_labels(how)(made.round(), State())

    for k, found in corrected(made).items():
        assert np.array_equal(found, expected(made, how, k).labels)


def test_phases_do_what_they_are_for(bench):
    made = clients(bench)
    context = made.round()

    correct_labels(CorrectionSettings(**SET))(context, State())

    assert all(np.array_equal(found, TRUE[k]) for k, found in corrected(made).items())
    # Classes 0 and 1 of client 0, 0 and 1 of client 1, 0 of client 3; the mixture of client 2
    # and the five samples of client 3 go to phase 2.
    assert context.entry["correction"]["phase1_classes"] == 5
    assert context.entry["correction"]["phase2_classes"] == 2
    assert context.entry["labels"]["noise_before"] == 0.0  # the bench takes the given as true


def test_the_bytes_are_those_of_the_sheet(bench):
    made = clients(bench)
    context = made.round()

    correct_labels(CorrectionSettings(**SET, min_class_size=0))(context, State())

    # Bytes of a correction, K = 4, C = 3, d = 8, l = 2, l2 = 3 and local classes 2 + 2 + 1 + 2:
    # K C d max(l, l2) down, sum C_k d l up, sum C_k C scores down, four bytes each.
    assert context.entry["bytes"] == {
        "down": {"class subspaces": 4 * 3 * 8 * 3 * 4, "class scores": 7 * 3 * 4},
        "up": {"class eigenvectors": 7 * 8 * 2 * 4},
    }


def test_classes_that_phase_one_may_not_decide_send_nothing(bench):
    made = clients(bench)
    context = made.round()

    correct_labels(CorrectionSettings(**SET, min_class_size=20))(context, State())

    assert context.entry["bytes"]["up"] == {"class eigenvectors": 6 * 8 * 2 * 4}


@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_of_clients_change_neither_labels_nor_bytes(bench, monkeypatch, chunk):
    whole, parts = clients(bench), clients(bench)
    at_once, in_parts = whole.round(), parts.round()
    correct_labels(CorrectionSettings(**SET))(at_once, State())

    monkeypatch.setattr(correction, "CHUNK", chunk)
    correct_labels(CorrectionSettings(**SET))(in_parts, State())

    assert in_parts.entry == at_once.entry
    assert all(np.array_equal(corrected(whole)[k], corrected(parts)[k]) for k in range(4))


@pytest.mark.parametrize("min_class_size", [0, 20])
def test_a_client_with_one_sample_is_corrected(bench, min_class_size):
    made = clients(bench, true=[[2], [0] * 30], given=[[1], [0] * 30])
    how = CorrectionSettings(**SET, min_class_size=min_class_size)
    context = made.round()

    if min_class_size == 0:
        with pytest.warns(UserWarning, match="more than 1 samples can carry"):
            correct_labels(how)(context, State())
    else:
        correct_labels(how)(context, State())

    assert corrected(made)[0].tolist() == [2]
    sent = context.entry["bytes"]["up"]["class eigenvectors"]
    assert sent == (8 * 1 + 8 * 2) * 4 if min_class_size == 0 else 8 * 2 * 4


def test_given_labels_and_the_state_stay_as_they_were(bench):
    made = clients(bench)
    before = [own.copy() for own in made.labels]
    state = State(values={"a": 1})

    after = correct_labels(CorrectionSettings(**SET))(made.round(), state)

    assert after == state
    assert all(np.array_equal(a, b) for a, b in zip(before, made.labels, strict=True))


def test_correcting_twice_starts_from_the_given_labels_again(bench):
    made = clients(bench)
    step = correct_labels(CorrectionSettings(**SET))
    step(made.round(), State())
    first = corrected(made)

    step(made.round(), State())

    assert all(np.array_equal(first[k], corrected(made)[k]) for k in range(4))


# ---- the knobs -------------------------------------------------------------------------------


def test_what_is_set_is_not_calibrated(bench):
    made = clients(bench)
    clean = {"features": made.world.by_use["correction"][made.clean[0]], "labels": made.clean[1]}
    found = calibrate(clean["features"], clean["labels"], stream(3, "calibration"))

    all_free = choose_knobs(clean=clean, how=CorrectionSettings(), seed=3)
    one_set = choose_knobs(clean=clean, how=CorrectionSettings(rank=1), seed=3)
    all_set = choose_knobs(clean={}, how=CorrectionSettings(**SET), seed=3)

    free = {
        "rank": found.rank,
        "projection_rank": found.projection_rank,
        "threshold": found.threshold,
    }
    assert all_free == {**free, "min_class_size": 20}
    at_one = calibrate(clean["features"], clean["labels"], stream(3, "calibration"), ranks=(1,))
    assert at_one.threshold != found.threshold
    assert one_set == {**all_free, "rank": 1, "threshold": at_one.threshold}
    assert all_set == {**SET, "min_class_size": 20}


def test_the_record_keeps_the_knobs_that_were_used(bench):
    context = clients(bench).round()

    correct_labels(CorrectionSettings())(context, State())

    knobs = context.entry["correction"]
    assert all(knobs[name] is not None for name in ("rank", "projection_rank", "threshold"))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"rank": 0}, "rank"),
        ({"projection_rank": 0}, "projection_rank"),
        ({"threshold": 0.0}, "threshold"),
        ({"threshold": 1.1}, "threshold"),
        ({"min_class_size": -1}, "min_class_size"),
    ],
)
def test_impossible_settings_are_refused(wrong, field):
    with pytest.raises(SettingError, match=field):
        CorrectionSettings(**wrong)


def refusal(how: CorrectionSettings, per_class: int, dimension: int = D) -> str:
    with pytest.raises(ConfigError) as caught:
        how.check(load_config({}, [f"data.server.per_class={per_class}"]), dimension)
    return str(caught.value)


def test_a_server_without_clean_images_is_refused_before_the_run():
    assert "data.server.per_class is 0" in refusal(CorrectionSettings(**SET), 0)


def test_one_clean_image_per_class_is_too_few_to_calibrate():
    # calibrate halves every class; it would fail in the middle of the run.
    assert "data.server.per_class is 1" in refusal(CorrectionSettings(), 1)
    alone = CorrectionSettings(rank=1, projection_rank=1, threshold=0.7)
    alone.check(load_config({}, ["data.server.per_class=1"]), D)


@pytest.mark.parametrize("name", ["rank", "projection_rank"])
def test_ranks_above_the_features_or_the_clean_images_are_refused(name):
    how = CorrectionSettings(**{**SET, name: 9})

    assert f"method.correction.{name} is 9, above the feature dimension 8" in refusal(how, 20)
    assert f"method.correction.{name} is 9, but 5 clean images" in refusal(how, 5, dimension=64)
