"""The loop over stages: order, records, commits, interrupts and resuming."""

from __future__ import annotations

import contextlib
import signal
import threading

import pytest
from coordinated import SCHEDULE, Run, breaking, fail, interrupt, lose_models

from raysim.errors import CheckpointError, Interrupted, WorkerLost
from raysim.protocols import Stage, Where
from raysim.runs.record import RoundRecord
from raysim.storage.checkpoint import read_manifest


def test_stages_run_in_order_and_say_where_they_are(tmp_path):
    run = Run(tmp_path)
    run()

    assert [(where.stage, where.round + 1) for where, _ in run.contexts] == SCHEDULE
    assert run.contexts[2][1] == Where("correct", 1, 2)
    assert [(r.stage, r.round) for r in run.folder.records()] == SCHEDULE


def test_every_record_has_its_seconds(tmp_path):
    run = Run(tmp_path)
    run()

    assert all(record.seconds >= 0 for record in run.folder.records())


def test_listeners_hear_start_then_each_round_before_its_commit(tmp_path):
    run = Run(tmp_path)
    run()

    kinds = [(e.kind, e.stage, e.round) for e in run.events]
    expected = [("start", "", 0)]
    for done, (stage, round_id) in enumerate(SCHEDULE, start=1):
        expected += [("round", stage, round_id), ("commit", "", done)]
    assert kinds[: len(expected)] == expected
    assert run.events[0].rounds == len(SCHEDULE)


def test_a_round_is_on_disk_and_a_commit_exists_when_listeners_hear_of_it(tmp_path):
    seen = []

    def listen(event):
        records, manifest = len(run.folder.records()), read_manifest(run.folder.checkpoint)
        seen.append((event.kind, records, manifest and manifest["finished"]))

    run = Run(tmp_path, listeners=[listen])
    run()

    assert seen[:5] == [
        ("start", 0, None),
        ("round", 1, None),
        ("commit", 1, 1),
        ("round", 2, 1),
        ("commit", 2, 2),
    ]


def test_listeners_are_called_in_the_order_given(tmp_path):
    heard = []
    listeners = [lambda event, i=i: heard.append(i) for i in (1, 2)]

    Run(tmp_path, listeners=listeners)()

    assert heard == [1, 2] * (len(heard) // 2)


@pytest.mark.parametrize(
    ("every", "commits"), [(1, [1, 2, 3, 4, 5, 6, 7, 8]), (2, [1, 3, 5, 7, 8]), (9, [1, 3, 8])]
)
def test_commits_follow_the_cadence_and_end_every_stage(tmp_path, every, commits):
    run = Run(tmp_path, every=every)
    run()

    assert [e.round for e in run.events if e.kind == "commit"] == commits
    assert read_manifest(run.folder.checkpoint)["finished"] == 8


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("broken", range(1, 9))
def test_resuming_after_a_failure_in_any_round_changes_nothing(tmp_path, unbroken, broken, every):
    with pytest.raises(ZeroDivisionError):
        Run(tmp_path / "run", stages=breaking(broken, fail), every=every)()

    again = Run(tmp_path / "run", every=every)
    outcome = again.outcome(again(resume=True))

    assert outcome == unbroken


def test_resuming_starts_after_the_last_commit(tmp_path):
    with pytest.raises(ZeroDivisionError):
        Run(tmp_path, stages=breaking(6, fail))()

    again = Run(tmp_path)
    again(resume=True)

    assert [(where.stage, where.round + 1) for where, _ in again.contexts] == SCHEDULE[5:]
    assert (again.events[0].kind, again.events[0].round) == ("start", 5)


def test_resuming_a_finished_run_does_nothing_and_returns_its_state(tmp_path, unbroken):
    Run(tmp_path / "run")()
    again = Run(tmp_path / "run")

    assert again.outcome(again(resume=True)) == unbroken
    assert again.contexts == []


def test_resuming_without_any_commit_starts_anew(tmp_path, unbroken):
    run = Run(tmp_path / "run")
    run.folder.append(RoundRecord.from_json({"stage": "group", "round": 1, "uncommitted": True}))

    assert run.outcome(run(resume=True)) == unbroken


def test_a_torn_last_record_does_not_stop_a_resume(tmp_path, unbroken):
    with pytest.raises(ZeroDivisionError):
        Run(tmp_path / "run", stages=breaking(4, fail))()
    with (tmp_path / "run" / "rounds.jsonl").open("a") as file:
        file.write('{"stage": "train", "ro')  # the power went while this was written

    again = Run(tmp_path / "run")

    assert again.outcome(again(resume=True)) == unbroken


def test_a_damaged_newest_commit_costs_one_round_only(tmp_path, unbroken, caplog):
    with pytest.raises(ZeroDivisionError):
        Run(tmp_path / "run", stages=breaking(6, fail))()
    (tmp_path / "run" / "checkpoint" / "manifest.json").write_text("{")

    again = Run(tmp_path / "run")

    assert again.outcome(again(resume=True)) == unbroken
    assert "damaged" in caplog.text
    assert again.events[0].round == 4


def test_fewer_records_than_committed_rounds_are_refused(tmp_path):
    run = Run(tmp_path)
    run()
    run.folder.keep_records(3)

    with pytest.raises(CheckpointError, match=r"fewer rounds than its checkpoint \(8\).*--force"):
        Run(tmp_path)(resume=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_interrupt_finishes_the_round_commits_and_stops(tmp_path, unbroken, number):
    run = Run(tmp_path / "run", stages=breaking(5, interrupt(number)), every=9)

    with pytest.raises(Interrupted, match=r"stopped after train round 2/5.*--resume"):
        run()

    assert len(run.folder.records()) == 5
    assert read_manifest(run.folder.checkpoint)["finished"] == 5
    again = Run(tmp_path / "run")
    assert again.outcome(again(resume=True)) == unbroken


def test_a_second_interrupt_stops_at_once_and_keeps_the_last_commit(tmp_path, unbroken):
    run = Run(tmp_path / "run", stages=breaking(5, interrupt(times=2)))

    with pytest.raises(Interrupted, match=r"at once.*--resume"):
        run()

    assert len(run.folder.records()) == 4
    assert read_manifest(run.folder.checkpoint)["finished"] == 4
    again = Run(tmp_path / "run")
    assert again.outcome(again(resume=True)) == unbroken


def test_an_interrupt_in_the_last_round_lets_the_run_finish(tmp_path, unbroken):
    run = Run(tmp_path / "run", stages=breaking(8, interrupt()))

    assert run.outcome(run()) == unbroken


@pytest.mark.parametrize("action", [fail, interrupt(), lambda: None])
def test_the_signal_handlers_are_put_back(tmp_path, action):
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]

    with contextlib.suppress(Interrupted, ZeroDivisionError):
        Run(tmp_path, stages=breaking(2, action))()

    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_run_outside_the_main_thread_works_without_signals(tmp_path, unbroken):
    run = Run(tmp_path / "run")
    found = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join()

    assert run.outcome(found[0]) == unbroken


# ---- models that die with their node ---------------------------------------------------------


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("broken", range(1, 9))
def test_a_run_that_loses_models_goes_back_to_its_last_commit(tmp_path, unbroken, broken, every):
    run = Run(tmp_path / "lost", stages=breaking(broken, lose_models), every=every)

    assert run.outcome(run()) == unbroken


def test_models_lost_while_going_back_are_looked_for_again(tmp_path, unbroken, monkeypatch):
    run = Run(tmp_path / "lost", stages=breaking(5, lose_models))
    restore, failures = run.federation.restore, [1]

    def fails_once(folder, manifest):
        if failures:
            failures.pop()
            lose_models()
        return restore(folder, manifest)

    monkeypatch.setattr(run.federation, "restore", fails_once)

    assert run.outcome(run()) == unbroken


def test_models_lost_again_and_again_end_the_run(tmp_path):
    def always(context, state):
        lose_models()

    run = Run(tmp_path / "lost", stages=(Stage("train", 2, always),))

    with pytest.raises(WorkerLost, match=r"4 times since the last commit.*max_restarts is 3"):
        run()


def test_late_clients_are_in_the_record_of_their_round_only(tmp_path):
    def step(context, state):
        if context.round == 1:
            context.federation.late.extend([2, 0])
        return state

    run = Run(tmp_path / "late", stages=(Stage("train", 3, step),))
    run()

    assert [r.late for r in run.folder.records()] == [None, [0, 2], None]
