"""The screen of a run: what it says of given records and events, on any terminal."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from datetime import UTC, datetime

import pytest
from rich.console import Console

from raysim.cli.live import Screen, clock, seconds_left, sparkline
from raysim.cli.progress import log_to_terminal, show_progress
from raysim.cli.story import Story
from raysim.runs.record import RoundRecord

NOON = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
STAGES = (("group", 1), ("correct", 1), ("train", 20))
LEVELS = "▁▂▃▄▅▆▇█"


def train(number, accuracy=0.5, **more):
    record = {"stage": "train", "round": number, "seconds": 2.0, "loss": 2.0 / number}
    sent = {"up": {"model": 500_000}, "down": {"model": 250_000}}
    plain = {**record, "accuracy": {"mean": accuracy, "std": 0.03}, "bytes": sent, **more}
    return RoundRecord.from_json(plain)


@pytest.fixture
def story():
    """A run in its fourth round of training, 65 seconds after its start."""
    told = Story("demo  fb_nll  digits  seed 0", stages=STAGES)
    told.add_event({"event": "start", "time": "2026-01-01T11:58:55+00:00"})
    told.add_record(RoundRecord("group", 1, seconds=0.25, groups=[0, 1, 1, 2], ari=0.875))
    labels = {"noise_before": 0.248, "noise_after": 0.0145}
    told.add_record(RoundRecord("correct", 1, seconds=1.5, labels=labels))
    for number, accuracy in enumerate((0.5, 0.75, 0.625), 1):
        told.add_record(train(number, accuracy))
    return told


def drawn(story, width=80, encoding="utf-8"):
    """Return the lines of the screen, without trailing blanks."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    Console(file=file, width=width, force_terminal=False).print(Screen(story, NOON))
    lines = file.buffer.getvalue().decode(encoding).splitlines()
    assert all(len(line) <= width for line in lines), lines
    return [line.rstrip() for line in lines]


def test_phases_say_what_they_found_and_how_long_it_took(story):
    head, group, correct, training = drawn(story)[:4]

    assert head == f"demo  fb_nll  digits  seed 0{'running  5/22  1:05':>52}"
    assert " ".join(group.split()) == "✓ group 1/1 3 groups ARI 0.88 0.2 s"
    assert " ".join(correct.split()) == "✓ correct 1/1 noise 24.8 % -> 1.5 % 1.5 s"
    assert re.fullmatch(r"▸ train   3/20 ━{6} {34} left 0:34 +6\.0 s", training)  # 17 * 2 s


def test_curves_show_now_and_best(story):
    _, _, _, _, accuracy, loss, sent = drawn(story)

    assert accuracy == "accuracy ▁█▅  62.5 % ± 3.0  best 75.0 % in train 2"
    assert loss == "loss     █▃▁  0.667"  # 2, 1, 2/3: 1/3 is (1 - 2/3) / (2 - 2/3) = 1/4 of the way
    assert sent == "sent     up 1.50 MB  down 0.75 MB"


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_every_width_has_room_for_what_counts(story, width):
    text = "\n".join(drawn(story, width))

    for part in ("running  5/22  1:05", "✓ group", "3/20", "left 0:34"[: width - 35], "62.5 %"):
        assert part in text


def test_a_terminal_without_unicode_gets_plain_characters(story):
    lines = drawn(story, encoding="ascii")

    assert lines[1].startswith("+ group")
    assert lines[3].startswith("> train")
    assert lines[4] == "accuracy _#=  62.5 % +- 3.0  best 75.0 % in train 2"


def test_lost_and_late_are_counted_and_the_next_round_proves_life(story):
    story.meet([{"actor": str(n), "role": "clients", "node": f"n{n % 2}"} for n in range(4)])
    story.add_record(train(4, late=[4, 7]))
    story.add_record(train(5, late=[4]))
    story.add_event({"event": "lost", "level": "WARNING", "message": "actor 1 [was] lost"})

    lines = drawn(story)
    assert "actors   3 of 4 alive on 2 nodes, 1 rebuilt" in lines
    assert "late     clients left behind 3 times in 2 rounds, last 4" in lines
    assert lines[-1] == "warning  actor 1 [was] lost"
    story.add_record(train(6))
    assert "actors   4 of 4 alive on 2 nodes, 1 rebuilt" in drawn(story)


def test_gpus_are_named_with_the_actors_that_share_them(story):
    rows = [{"actor": str(n), "node": "10.0.0.7", "gpu_ids": [str(n // 2)]} for n in range(3)]
    story.meet([*rows, {"actor": "3", "role": "server", "node": "10.0.0.7", "gpu_ids": []}])

    assert "gpus     0 on 10.0.0.7 (2 actors), 1 on 10.0.0.7 (1 actor)" in drawn(story)


def test_a_run_in_one_process_has_no_actors(story):
    story.meet([{"actor": "driver", "role": "clients", "node": "this process"}])

    assert not [line for line in drawn(story) if line.startswith("actors")]


def test_going_back_takes_rounds_away(story):
    story.add_event({"event": "back", "finished": 3, "level": "WARNING", "message": "lost"})

    assert [r.round for r in story.rounds if r.stage == "train"] == [1]


@pytest.mark.parametrize(("outcome", "mark"), [("failed", "✗"), ("stopped", "✗"), ("done", "▸")])
def test_the_end_is_said_with_its_reason(story, outcome, mark):
    end = {"event": "end", "outcome": outcome, "message": "run ended: client 3 failed; lower lr"}
    story.add_event({**end, "time": "2026-01-01T11:59:00+00:00"})

    lines = drawn(story)
    assert lines[0].endswith(f"{outcome}  5/22  0:05")  # the clock stands still
    assert lines[3].startswith(f"{mark} train")
    assert ("  client 3 failed; lower lr" in lines) == (outcome != "done")


def test_before_the_start_the_phases_are_pending():
    lines = drawn(Story("x", stages=STAGES))

    assert lines[0].endswith("setting up")
    assert [line.split()[1] for line in lines[1:]] == ["group", "correct", "train"]


def test_sparkline_scales_and_averages():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 10, LEVELS) == LEVELS
    assert sparkline([3.0, 3.0], 10, LEVELS) == "▄▄"
    assert sparkline([0, 0, 7, 7], 2, LEVELS) == "▁█"
    assert len(sparkline(range(1001), 40, LEVELS)) == 40
    assert sparkline([], 10, LEVELS) == ""


def test_time_left_needs_a_round_of_every_stage_to_come(story):
    assert seconds_left(story) == pytest.approx(17 * 2.0)
    story.stages = (*STAGES, ("finetune", 5))
    assert seconds_left(story) is None
    assert (clock(5), clock(760.4), clock(3723)) == ("0:05", "12:40", "1:02:03")


# ---- a real terminal -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "environment"), [(60, {"NO_COLOR": "1"}), (80, {"TERM": "dumb"})]
)
def test_a_real_run_on_a_terminal(tmp_path, on_terminal, columns, environment):
    line = [sys.executable, "-m", "raysim", "run", "quickstart", "runtime.kind=local"]
    line += ["train.rounds=3", "train.epochs=1", f"output={tmp_path / 'run'}"]

    code, shown = on_terminal(line, columns, **environment)

    assert code == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    accuracy = 100 * result["accuracy"]["mean"]
    if environment.get("TERM") == "dumb":
        assert "\x1b" not in shown
        assert f"train 3/3  acc {accuracy:.1f}" in text
        return
    assert "\x1b[" in shown
    assert "\x1b[36m" not in shown
    last = [line.rstrip() for line in text[text.rindex("quickstart  fb_nll") :].splitlines()]
    assert re.search(r"done  5/5  0:\d\d$", last[0])
    assert [line.split()[:3] for line in last[1:4]] == [
        ["✓", name, count]
        for name, count in (("group", "1/1"), ("correct", "1/1"), ("train", "3/3"))
    ]
    assert f"  {accuracy:.1f} % ± {100 * result['accuracy']['std']:.1f}" in last[4]


def test_warnings_are_printed_above_the_screen(capsys):
    logger = logging.getLogger("raysim")
    before = logger.handlers[:]
    logger.handlers.clear()
    try:
        log_to_terminal()
        logging.getLogger("raysim.tests").warning("rank was capped")
    finally:
        logger.handlers[:] = before
        logging.captureWarnings(False)

    assert capsys.readouterr().err == "raysim: rank was capped\n"


def test_quiet_shows_nothing(capsys):
    with show_progress(None, stream=sys.stdout, quiet=True) as listen:
        listen(None)

    assert capsys.readouterr() == ("", "")
