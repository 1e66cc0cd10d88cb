"""A run taken one round at a time: left after any, gone on with later."""

from __future__ import annotations

import signal

import pytest
from coordinated import SCHEDULE, STAGES, Run, breaking, fail, interrupt, lose_models, work

from raysim.errors import Interrupted
from raysim.protocols import Stage
from raysim.storage.checkpoint import read_manifest


def taken(run, count, *, resume=False):
    run.coordinator.begin(resume=resume)
    return [run.coordinator.next_round() for _ in range(count)]


@pytest.mark.parametrize("left", range(1, 8))
def test_leaving_after_any_round_commits_it_and_resuming_changes_nothing(tmp_path, unbroken, left):
    run = Run(tmp_path / "run", every=9)
    events = taken(run, left)
    run.coordinator.leave()

    again = Run(tmp_path / "run", every=9)
    outcome = again.outcome(again(resume=True))

    assert [(e.stage, e.round) for e in events] == SCHEDULE[:left]
    assert [(where.stage, where.round + 1) for where, _ in again.contexts] == SCHEDULE[left:]
    assert outcome == unbroken


def test_rounds_taken_one_by_one_end_where_a_run_ends(tmp_path, unbroken):
    run = Run(tmp_path / "run")
    taken(run, 8)

    assert run.coordinator.is_finished
    assert run.outcome(run.coordinator.state) == unbroken


def test_a_round_that_failed_half_way_is_not_committed_on_leaving(tmp_path, unbroken):
    def fails_later(context, state):
        state = work(context, state)
        if (context.stage, context.round) == ("train", 3):
            fail()
        return state

    run = Run(tmp_path / "run", stages=(*STAGES[:2], Stage("train", 5, fails_later)), every=9)
    with pytest.raises(ZeroDivisionError):
        taken(run, 8)
    run.coordinator.leave()

    assert read_manifest(run.folder.checkpoint)["finished"] == 3  # the end of "correct"
    again = Run(tmp_path / "run", every=9)
    assert again.outcome(again(resume=True)) == unbroken


def test_an_interrupt_in_a_round_taken_alone_commits_and_stops(tmp_path, unbroken):
    before = signal.getsignal(signal.SIGINT)
    run = Run(tmp_path / "run", stages=breaking(5, interrupt()), every=9)

    taken(run, 4)
    assert signal.getsignal(signal.SIGINT) is before  # between rounds it is the caller's
    with pytest.raises(Interrupted, match=r"stopped after train round 2/5"):
        run.coordinator.next_round()

    assert signal.getsignal(signal.SIGINT) is before
    again = Run(tmp_path / "run")
    assert again.outcome(again(resume=True)) == unbroken


def test_models_lost_on_leaving_cost_the_uncommitted_rounds(tmp_path, unbroken, monkeypatch):
    run = Run(tmp_path / "run", every=9)
    taken(run, 5)
    monkeypatch.setattr(run.federation, "commit", lambda *_: lose_models())
    run.coordinator.leave()

    assert read_manifest(run.folder.checkpoint)["finished"] == 3
    again = Run(tmp_path / "run")
    assert again.outcome(again(resume=True)) == unbroken
