"""TensorBoard and MLflow, real packages: what they are given is what the records say."""

from __future__ import annotations

import json
import logging
import uuid

import pytest

from raysim.config import load_config
from raysim.errors import ConfigError, EnvironmentNotFit, Interrupted
from raysim.experiment import Experiment
from raysim.runs.folder import RunFolder
from raysim.runs.record import RoundRecord
from raysim.runtime.coordinator import Event
from raysim.trackers import tracking
from raysim.trackers.tracker import Points

SETTINGS = ("name=tracked", "train.rounds=3", "train.epochs=1", "runtime.kind=local")
RUN = {"name": "by_hand", "method": "m", "dataset": "d", "seed": 3}


@pytest.fixture(autouse=True)
def _store(tmp_path, monkeypatch):
    """MLflow's store in a folder of the test; it reads the environment at every call."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")


def experiment(path, *more):
    return Experiment(load_config("quickstart", [*SETTINGS, f"output={path}", *more]))


def scalars(path):
    """Return tag -> [(step, value)] as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(path / "tensorboard")).Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def mlflow_runs(name):
    """Return MLflow's client and the runs of an experiment."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    return client, client.search_runs([client.get_experiment_by_name(name).experiment_id])


def history(client, run, key):
    points = client.get_metric_history(run.info.run_id, key)
    return sorted((metric.step, metric.value) for metric in points)


def test_both_get_the_numbers_of_every_round_and_change_no_bit(tmp_path):
    with_them = experiment(tmp_path / "a", "track=[tensorboard,mlflow]").run().summary
    without = experiment(tmp_path / "b").run().summary

    assert with_them["digest"] == without["digest"]
    records = [
        json.loads(line) for line in (tmp_path / "a" / "rounds.jsonl").read_text().split("\n")[:-1]
    ]
    trained = [r for r in records if r["stage"] == "train"]
    accuracy = [(r["round"], r["accuracy"]["mean"]) for r in trained]
    second = [(r["round"], r["by_task"]["accuracy"][1]) for r in trained]
    up = sum(sum(r["bytes"]["up"].values()) for r in records if "bytes" in r)

    board = scalars(tmp_path / "a")
    near = pytest.approx  # event files hold float32
    assert [(s, near(v)) for s, v in accuracy] == board["accuracy/mean"]
    assert [(s, near(v)) for s, v in second] == board["accuracy/task_1"]
    assert [(r["round"], near(r["loss"])) for r in trained] == board["loss/train"]
    assert board["groups/ari"] == [(0, 1.0)]
    assert board["labels/noise_after"] == [(0, near(records[1]["labels"]["noise_after"]))]
    assert board["bytes/up_total"][-1] == (3, near(up))
    assert [value for _, value in board["seconds/train"]] == near([r["seconds"] for r in trained])

    client, (run,) = mlflow_runs("tracked")
    assert history(client, run, "accuracy/mean") == accuracy
    assert history(client, run, "bytes/up_total")[-1] == (3, up)
    assert run.data.metrics["rounds_finished"] == 5
    assert run.info.status == "FINISHED"
    parameters = run.data.params
    assert (parameters["train.rounds"], parameters["method.name"]) == ("3", "fb_nll")
    assert parameters["data.dataset.name"] == "digits"
    assert run.data.tags["raysim.run_dir"] == str(tmp_path / "a")
    assert not (tmp_path / "b" / "tensorboard").exists()


def stop_after(count):
    """Return a listener that stops the run after so many rounds of it."""
    seen = []

    def listen(event):
        seen.append(event.kind)
        if seen.count("commit") == count:
            raise Interrupted("enough")

    return listen


def test_a_resumed_run_goes_on_in_the_same_places(tmp_path):
    track = "track=[tensorboard,mlflow]"
    with pytest.raises(Interrupted):
        experiment(tmp_path / "a", track).run(listeners=[stop_after(3)])
    client, (stopped,) = mlflow_runs("tracked")
    experiment(tmp_path / "a", track).run(resume=True)

    _, (run,) = mlflow_runs("tracked")
    assert (stopped.info.status, run.info.status) == ("KILLED", "FINISHED")
    assert [step for step, _ in history(client, run, "accuracy/mean")] == [1, 2, 3]
    assert [step for step, _ in scalars(tmp_path / "a")["accuracy/mean"]] == [1, 2, 3]
    experiment(tmp_path / "a", track).run(force=True)
    assert len(mlflow_runs("tracked")[1]) == 2
    assert [step for step, _ in scalars(tmp_path / "a")["accuracy/mean"]] == [1, 2, 3]


def test_a_tracker_that_comes_later_gets_the_rounds_before(tmp_path):
    with pytest.raises(Interrupted):
        experiment(tmp_path / "a").run(listeners=[stop_after(3)])

    experiment(tmp_path / "a", "track=[tensorboard,mlflow]").run(resume=True)

    client, (run,) = mlflow_runs("tracked")
    assert [step for step, _ in history(client, run, "loss/train")] == [1, 2, 3]
    assert [step for step, _ in scalars(tmp_path / "a")["loss/train"]] == [1, 2, 3]


# ---- what goes wrong -------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    opened = RunFolder(tmp_path / "run")
    opened.open(force=False)
    yield opened
    opened.close()


def tell(listen, number):
    record = RoundRecord(stage="train", round=number, seconds=1.0, loss=1.0 / number)
    listen(Event("round", "train", number, 9, record))


def test_a_tracker_that_fails_warns_once_and_lets_the_run_go_on(folder, caplog):
    (folder.path / "tensorboard").write_text("a file where a folder should be")

    with (
        caplog.at_level(logging.WARNING, "raysim"),
        tracking(["tensorboard"], folder, run=RUN, parameters={}) as (listen,),
    ):
        listen(Event("start", rounds=9))
        tell(listen, 1)
        tell(listen, 2)

    (warning,) = caplog.records
    assert "tensorboard gets no more of this run (" in warning.getMessage()


def test_a_store_that_goes_away_warns_once(folder, caplog, tmp_path):
    import shutil

    with (
        caplog.at_level(logging.WARNING, "raysim"),
        tracking(["mlflow"], folder, run=RUN, parameters={}) as (listen,),
    ):
        listen(Event("start", rounds=9))
        tell(listen, 1)
        shutil.rmtree(tmp_path / "mlruns")
        tell(listen, 2)
        tell(listen, 3)

    (warning,) = [r for r in caplog.records if r.name.startswith("raysim")]
    assert "mlflow gets no more of this run (" in warning.getMessage()


def test_a_round_run_again_is_told_once(folder):
    with tracking(["tensorboard"], folder, run=RUN, parameters={}) as (listen,):
        listen(Event("start", rounds=9))
        for number in (1, 2, 3, 2, 3, 4):  # models were lost after 3; back to the commit of 1
            tell(listen, number)

    steps = [step for step, _ in scalars(folder.path)["loss/train"]]
    assert steps == [1, 2, 3, 4]


def test_one_shot_stages_are_step_0_and_bytes_add_up():
    points = Points()
    sent = {"up": {"a": 2, "b": 3}, "down": {}}
    group = {"stage": "group", "round": 1, "seconds": 1.0, "bytes": sent}
    trained = [
        {"stage": "train", "round": n, "seconds": 1.0, "loss": None, "bytes": sent} for n in (1, 2)
    ]

    told = (group, *trained, trained[1])
    *found, again = [points.add(record) for record in map(RoundRecord.from_json, told)]

    assert [(p.number, p.step) for p in found] == [(1, 0), (2, 1), (3, 2)]
    assert [p.values["bytes/up_total"] for p in found] == [5, 10, 15]
    assert again is None
    assert "loss/train" not in found[1].values


def test_tensorboard_at_a_url_is_refused_before_the_run():
    place = f"memory://{uuid.uuid4().hex}/run"

    with pytest.raises(ConfigError, match="tensorboard writes to a folder of this machine"):
        experiment(place, "track=[tensorboard]").run()

    assert not RunFolder(place).is_started


@pytest.mark.parametrize(
    "uri", ["http://127.0.0.1:9", "nosuch://server"], ids=["no server", "no such scheme"]
)
def test_an_unreachable_mlflow_is_refused_before_the_run(tmp_path, monkeypatch, uri):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")

    with pytest.raises(EnvironmentNotFit, match="track: mlflow cannot be used at") as refused:
        experiment(tmp_path / "a", "track=[mlflow]").run()

    assert uri in str(refused.value)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, name):
    import sys

    for module in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed

    with pytest.raises(EnvironmentNotFit, match=rf"pip install 'raysim\[{name}\]'"):
        experiment(tmp_path / "a", f"track=[{name}]").run()


def test_an_unknown_tracker_is_refused_by_the_config():
    with pytest.raises(ConfigError, match="track must be 'tensorboard' or 'mlflow'"):
        load_config("quickstart", ["track=[wandb]"])


def test_the_option_is_the_setting(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from raysim.cli.run import command

    monkeypatch.chdir(tmp_path)
    line = ["quickstart", *SETTINGS, "output=r", "--quiet", "--track", "tensorboard"]
    done = CliRunner().invoke(command, line, catch_exceptions=False)

    assert done.exit_code == 0
    assert load_config(tmp_path / "r" / "config.yaml").track == ("tensorboard",)
    assert len(scalars(tmp_path / "r")["accuracy/mean"]) == 3
