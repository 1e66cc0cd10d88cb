"""``groups: auto``: the number of groups is found, said with its confidence, and paid for."""

from __future__ import annotations

import json

import numpy as np
import pytest

from raysim.core.similarity import similarity_matrix
from raysim.core.spectra import spectrum
from raysim.errors import ConfigError
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError
from raysim.steps.grouping import GroupingSettings, group_by_similarity
from raysim.steps.relevance import halves, self_task

D = 8
TASKS = np.repeat([0, 1, 2], 4)


@pytest.fixture
def twelve(bench):
    """Twelve clients of three tasks: other directions are strong in each."""
    rng = stream(0, "test.auto")
    spread = np.array([np.roll([4, 3, 2, 1, 0.2, 0.2, 0.2, 0.2], 3 * task) for task in range(3)])
    made = bench([np.zeros(60, int) for _ in TASKS], classes=1)
    rows = [rng.normal(0.0, spread[task], (60, D)) for task in TASKS]
    made.world.by_use["grouping"] = np.concatenate(rows).astype(np.float32)
    return made


def test_three_groups_are_found_and_recorded(twelve):
    context = twelve.round()

    state = group_by_similarity(GroupingSettings(groups="auto", rank=3))(context, State())

    assert list(state.groups.values()) == TASKS.tolist()
    auto = context.entry["auto"]
    assert (auto["count"], auto["confidence"]) == (3, 1.0)
    assert max(auto["scores"], key=auto["scores"].get) == "3"
    assert context.entry["bytes"]["up"]["self_similarity"] == 12 * 4


def test_landmarks_are_counted_instead_of_all(twelve):
    context = twelve.round()
    how = GroupingSettings(groups="auto", rank=3, landmarks=9)

    state = group_by_similarity(how)(context, State())

    assert list(state.groups.values()) == TASKS.tolist()
    assert context.entry["bytes"]["up"]["self_similarity"] == 9 * 4


def test_a_client_compares_its_own_halves(twelve):
    arguments = {"rank": 3, "seed": 5, "arrays": "numpy"}

    reply = twelve.round().federation.map(self_task, on=[7], **arguments)[7]

    rows = twelve.world.by_use["grouping"][7 * 60 : 8 * 60]
    order = stream(5, "halves", 7).permutation(60)
    pair = [spectrum(rows[order[:30]]), spectrum(rows[order[30:]])]
    assert reply == pytest.approx(similarity_matrix(pair, 3)[0, 1], abs=1e-6)


@pytest.mark.parametrize("count", [2, 5, 9])
def test_halves_hold_every_sample_once(count):
    first, second = halves(count, 0, 3)

    assert sorted([*first, *second]) == list(range(count))
    assert len(first) - len(second) in (0, 1)


def test_one_sample_is_in_both_halves():
    assert [part.tolist() for part in halves(1, 0, 0)] == [[0], [0]]


def test_auto_with_three_clients_is_refused(bench):
    made = bench([np.zeros(9, int)] * 3, classes=1)

    with pytest.raises(ConfigError, match=r"at\.groups is auto, .* at least 4 clients .* got 3"):
        GroupingSettings(groups="auto").check(made.config, D, at="at")


def test_auto_with_three_landmarks_is_refused(twelve):
    with pytest.raises(ConfigError, match="got 3; name the number of groups"):
        GroupingSettings(groups="auto", landmarks=3).check(twelve.config, D)


def test_zero_groups_are_still_refused():
    with pytest.raises(SettingError, match="groups must be at least 1, got 0"):
        GroupingSettings(groups=0)


def test_a_whole_run_counts_its_groups(run_tiny):
    result = run_tiny("{name: fb_nll_minus, grouping: {groups: auto}}", "train.rounds=1")
    named = run_tiny("fb_nll_minus", "train.rounds=1")

    assert result.summary["groups"] == named.summary["groups"]
    assert result.summary["digest"]["models"] == named.summary["digest"]["models"]
    first = json.loads((result.run_dir / "rounds.jsonl").read_text().splitlines()[0])
    assert first["auto"]["count"] == 3
    assert first["auto"]["confidence"] >= 0.9
