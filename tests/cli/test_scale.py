"""``raysim scale``: what it measures, how it goes on, what it refuses before anything starts."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import subprocess
import sys
import time
import types
from unittest.mock import MagicMock

import pytest

from raysim.errors import Interrupted
from raysim.experiment import Experiment
from raysim.studies.scale import PHASES, PeakMemory, ScaleSettings, draw

QUICK = ("--local", "--dim", "20", "--rounds", "1")


@pytest.fixture
def scale(command, tmp_path):
    """Return a function that runs ``raysim scale ARGUMENTS...``: (exit code, output, errors)."""
    return functools.partial(command, "scale", tmp_path)


@pytest.fixture
def runs(monkeypatch):
    """Return the numbers of clients that were run, in order; ``stop_at`` breaks one of them."""
    counter = types.SimpleNamespace(done=[], stop_at=None, reason=Interrupted("asked to"))
    original = Experiment.run

    def run(self, **options):
        count = self.config.data.partition.clients
        if count == counter.stop_at:
            raise counter.reason
        counter.done.append(count)
        return original(self, **options)

    monkeypatch.setattr(Experiment, "run", run)
    return counter


def rows_of(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "scale.jsonl").read_text().splitlines()]


# ---- what it measures ------------------------------------------------------------------------


def test_json_gives_every_phase_of_every_size_and_is_the_last_line(scale, tmp_path):
    code, out, _ = scale("--clients", "40,20", "--out", "s", *QUICK, "--json")

    found = json.loads(out.splitlines()[-1])
    assert code == 0
    assert [row["clients"] for row in found["rows"]] == [20, 40]
    for row in found["rows"]:
        assert row["seconds"].keys() == row["ms_per_client"].keys() == set(PHASES)
        for phase in PHASES:
            expected = 1e3 * row["seconds"][phase] / row["clients"]
            assert row["ms_per_client"][phase] == pytest.approx(expected, abs=1e-3)
        assert row["seconds"]["total"] > row["seconds"]["grouping"] > 0
    assert rows_of(tmp_path / "s") == found["rows"]


def test_the_clients_are_grouped_and_corrected(scale, tmp_path):
    scale("--clients", "60", "--local", "--out", "s")

    (row,) = rows_of(tmp_path / "s")
    summary = json.loads((tmp_path / "s" / "K60" / "result.json").read_text())
    assert row["ari"] == 1.0
    assert row["noise_before"] == pytest.approx(0.25)
    assert row["noise_after"] < 0.01
    for way in ("up", "down"):
        assert row["bytes_per_client"][way] == round(summary["bytes"][way] / 60) > 0


def test_the_tables_show_every_size_and_say_what_is_not_known(scale, monkeypatch):
    monkeypatch.setattr(PeakMemory, "__enter__", lambda self: self)  # a system that does not tell

    _, out, _ = scale("--clients", "20", "--out", "s", *QUICK)

    tables = out[out.index("seconds") :].splitlines()
    assert tables[1].split()[:2] == ["clients", "setup"]
    assert tables[2].split()[0] == "20"
    assert "n/a" in tables[2]
    assert "up kB" in out


def test_landmarks_are_for_sizes_above_them(scale, tmp_path):
    scale("--clients", "20,60", "--landmarks", "20", "--out", "s", *QUICK)

    assert [row["landmarks"] for row in rows_of(tmp_path / "s")] == [None, 20]
    assert (tmp_path / "s" / "K20" / "artifacts" / "similarity.npy").is_file()
    assert (tmp_path / "s" / "K60" / "artifacts" / "landmarks.npy").is_file()


@pytest.mark.ray
def test_actors_give_the_bits_of_one_process(scale, ray_session, tmp_path):
    scale("--clients", "20", "--out", "alone", *QUICK)
    scale("--clients", "20", "--out", "spread", *QUICK[1:], "--actors", "2")

    (row,) = rows_of(tmp_path / "spread")
    alone, spread = (
        json.loads((tmp_path / name / "K20" / "result.json").read_text())["digest"]
        for name in ("alone", "spread")
    )
    assert row["actors"] == 2
    assert spread == alone
    assert any((tmp_path / "spread" / "K20" / "checkpoint").rglob("*.npz"))  # actors wrote it


# ---- going on --------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [Interrupted("asked to"), KeyboardInterrupt()])
def test_an_interrupted_run_goes_on_with_what_is_missing(scale, runs, tmp_path, reason):
    runs.stop_at, runs.reason = 20, reason
    code, _, err = scale("--clients", "10,20", "--out", "s", *QUICK)
    before = rows_of(tmp_path / "s")
    assert code == 130
    assert "1 of 2 sizes are in s, the same command goes on" in err

    runs.stop_at = None
    code, _, _ = scale("--clients", "10,20", "--out", "s", *QUICK)

    assert code == 0
    assert runs.done == [10, 20]
    assert rows_of(tmp_path / "s")[:1] == before


def test_a_size_that_was_not_finished_is_measured_anew(scale, runs, tmp_path):
    scale("--clients", "10", "--out", "s", *QUICK)
    (tmp_path / "s" / "scale.jsonl").unlink()
    (tmp_path / "s" / "K10" / "result.json").unlink()

    code, _, _ = scale("--clients", "10", "--out", "s", *QUICK)

    assert code == 0
    assert runs.done == [10, 10]
    assert (tmp_path / "s" / "K10" / "result.json").is_file()


def test_a_finished_run_is_shown_again_without_running(scale, runs):
    first = scale("--clients", "10,20", "--out", "s", *QUICK, "--json")[1]

    second = scale("--clients", "20,10", "--out", "s", *QUICK, "--json")[1]

    assert runs.done == [10, 20]
    assert json.loads(first)["rows"] == json.loads(second)["rows"]


def test_other_arguments_in_the_same_folder_are_refused(scale, runs):
    scale("--clients", "10", "--out", "s", *QUICK)

    code, _, err = scale("--clients", "10,20", "--out", "s", *QUICK, "--seed", "1")

    assert code == 2
    assert "clients [10] there and [10, 20] here, seed 0 there and 1 here" in err
    assert runs.done == [10]


def test_a_folder_with_something_else_is_refused(scale, tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "mine.txt").write_text("keep")

    code, _, err = scale("--clients", "10", "--out", "s", *QUICK)

    assert code == 2
    assert "holds no scale run" in err
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["mine.txt"]


def test_a_folder_name_may_hold_braces(scale, tmp_path):
    assert scale("--clients", "10", "--out", "s{x}", *QUICK)[0] == 0
    assert (tmp_path / "s{x}" / "K10" / "result.json").is_file()


# ---- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--clients", "10,many"], "--clients must be whole numbers"),
        (["--clients", "1e3"], "got '1e3'"),
        (["--clients", "10,4"], "--clients must be at least --groups (5), got 4"),
        (["--clients", "10,20,10"], "must name a number once, got [10, 20, 10]"),
        (["--clients", "10", "--landmarks", "4"], "--landmarks must be at least --groups (5)"),
        (["--clients", "10,20", "--actors", "11"], "at most the smallest of --clients (10)"),
        (["--clients", "10", "--actors", "none"], "--actors must be auto or at least 1"),
        (["--clients", "10", "--actors", "2", "--local"], "--local has no actors"),
        (["--clients", "10", "--dim", "9"], "--dim must be at least 10"),
        (["--clients", "10", "--samples", "3"], "--samples must be at least 4, got 3; raise it"),
        (["--clients", "10", "--groups", "1"], "--groups must be at least 2"),
        (["--clients", "10", "--plot", "cost.txt"], "--plot must end in .png"),
        (["--clients", "10", "--plot", "no/cost.png"], "there is no folder no"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(scale, runs, tmp_path, arguments, says):
    code, _, err = scale(*arguments, "--out", "s")

    assert code == 2
    assert says in err
    assert list(tmp_path.iterdir()) == []
    assert runs.done == []


# ---- the picture -----------------------------------------------------------------------------


def test_a_missing_matplotlib_is_said_before_anything_starts(scale, runs, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name)
    )

    code, _, err = scale("--clients", "10", "--out", "s", "--plot", "cost.png", *QUICK)

    assert code == 3
    assert "pip install matplotlib" in err
    assert list(tmp_path.iterdir()) == []


def test_the_picture_has_log_axes_and_a_line_per_phase(monkeypatch, tmp_path):
    module, times, sizes = MagicMock(), MagicMock(), MagicMock()
    module.Figure.return_value.subplots.return_value = (times, sizes)
    monkeypatch.setitem(sys.modules, "matplotlib", MagicMock())
    monkeypatch.setitem(sys.modules, "matplotlib.figure", module)
    fixed = {"bytes_per_client": {"up": 1_000_000, "down": 2_000_000}, "peak_bytes": None}
    rows = [{"clients": k, "seconds": dict.fromkeys(PHASES, k / 10), **fixed} for k in (10, 100)]

    draw(rows, tmp_path / "cost.png")

    assert lines(times) == {phase: ([10, 100], [1.0, 10.0]) for phase in PHASES}
    assert lines(sizes).keys() == {"up per client", "down per client"}  # memory is not known
    for axes in (times, sizes):
        assert axes.set.call_args.kwargs["xscale"] == axes.set.call_args.kwargs["yscale"] == "log"
    module.Figure.return_value.savefig.assert_called_once_with(tmp_path / "cost.png", dpi=150)


def lines(axes) -> dict:
    return {call.kwargs["label"]: call.args for call in axes.plot.call_args_list}


# ---- parts -----------------------------------------------------------------------------------


def test_memory_of_children_counts():
    # In a process of its own: other children of this one may come and go meanwhile.
    script = (
        inspect.getsource(_measure_with_and_without_a_child)
        + """
import subprocess, sys, time
from raysim.studies.scale import PeakMemory
print(_measure_with_and_without_a_child())
"""
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert int(done.stdout) > 90_000_000, done.stderr


def _measure_with_and_without_a_child():
    with PeakMemory() as alone:
        time.sleep(0.6)
    hold = "import time; block = bytearray(b'x') * 100_000_000; print(flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        with PeakMemory() as both:
            time.sleep(0.6)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()

    return both.peak_bytes - alone.peak_bytes


def test_memory_is_unknown_where_the_system_does_not_tell(tmp_path):
    with PeakMemory(root=tmp_path) as memory:
        pass

    assert memory.peak_bytes is None


@pytest.mark.parametrize("groups", [2, 12])
def test_a_pair_of_clients_costs_the_same_for_every_size(groups, tmp_path):
    how = ScaleSettings(clients=(100, 10_000), groups=groups)

    small, large = (how.config(k, tmp_path) for k in how.clients)

    assert small.method == large.method
    assert small.method.grouping.rank == 2 * small.data.dataset.subspace_rank
