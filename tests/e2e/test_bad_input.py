"""Bad input: a clear error, the right exit code, and an output folder that nobody touched."""

from __future__ import annotations

import os
import shutil
import sys

import numpy as np
import pytest

BASE = ("quickstart", "train.rounds=2", "train.epochs=1", "runtime.kind=local")


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """A finished run; tests work on copies of it."""
    from raysim.config import load_config
    from raysim.experiment import Experiment

    path = tmp_path_factory.mktemp("finished") / "run"
    Experiment(load_config(BASE[0], [*BASE[1:], f"output={path}"])).run()
    return path


@pytest.fixture
def old(finished_run, tmp_path):
    """A copy of the finished run: what bad input must not destroy, even with --force."""
    return shutil.copytree(finished_run, tmp_path / "old" / "run")


@pytest.fixture
def files(tmp_path):
    """Paths that cases refer to, in the folder ``files``."""
    folder = tmp_path / "files"
    (folder / "empty").mkdir(parents=True)
    (folder / "text").write_text("not an archive")
    images = np.full((20, 28, 28), np.nan, np.float32)
    labels = np.arange(20) % 10
    (folder / "nan").mkdir()
    np.savez(folder / "nan" / "mnist.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    return folder


CASES = {
    # name: (overrides, what the text must hold: the key, what was found, what to do)
    "unknown dataset": (
        ["data.dataset=nosuch"],
        ["data.dataset", "unknown dataset 'nosuch'", "one of: cifar10"],
    ),
    "misspelled dataset": (["data.dataset=digit"], ["data.dataset", "'digit'", "did you mean digits?"]),
    "unknown method": (["method=fbnll"], ["method", "'fbnll'", "did you mean fb_nll?"]),
    "unknown model": (["model=logistics"], ["model", "'logistics'", "did you mean logistic?"]),
    "unknown noise": (["data.noise=unifrm"], ["data.noise", "'unifrm'", "did you mean uniform?"]),
    "unknown partition": (["data.partition=task"], ["data.partition", "'task'", "did you mean tasks?"]),
    "unknown features": (["data.features=hogs"], ["data.features", "'hogs'", "did you mean hog?"]),
    "unknown key": (["nonsense=3"], ["nonsense is not a setting", "got 3", "remove it"]),
    "misspelled key": (
        ["data.noise.rte=0.1"],
        ["data.noise.rte is not a setting; did you mean rate?", "got 0.1"],
    ),
    "misspelled section": (["trian.lr=0.1"], ["trian is not a setting; did you mean train?", "0.1"]),
    "no key=value": (["train.rounds"], ["'train.rounds'", "key=value"]),
    "text for a number": (["train.rounds=many"], ["train.rounds", "'many'", "must be a valid integer"]),
    "value for a section": (["train=5"], ["train must be a section", "got 5"]),
    "rate out of range": (["data.noise.rate=1.5"], ["data.noise.rate", "got 1.5", "must be in [0, 1)"]),
    "negative lr": (["train.lr=-1"], ["train.lr", "got -1.0", "try 0.05"]),
    "lr not a number": (["train.lr=nan"], ["train.lr", "got nan", "try 0.05"]),
    "no round": (["train.rounds=0"], ["train.rounds", "got 0", "raise it"]),
    "nobody takes part": (["train.participation=0"], ["train.participation", "got 0.0", "above 0"]),
    "negative seed": (["seed=-1"], ["seed", "got -1", "must not be negative"]),
    "no files in data.root": (
        ["data.dataset=mnist", "data.root={files}/empty"],
        ["'mnist' has no files in", "{files}/empty", "raysim data fetch mnist", "set data.root"],
    ),
    "data.root is nowhere": (
        ["data.dataset=cifar10", "data.root={files}/absent"],
        ["'cifar10' has no files in", "{files}/absent", "set data.root"],
    ),
    "partition file missing": (
        ["data.partition={{kind: file, path: {files}/absent.npz}}"],
        ["data.partition.path", "{files}/absent.npz", "correct the path"],
    ),
    "partition file of another kind": (
        ["data.partition={{kind: file, path: {files}/text}}"],
        ["data.partition.path", "{files}/text", "export it again"],
    ),
    "partition file not named": (
        ["data.partition={{kind: file}}"],
        ["data.partition.path", "must be set"],
    ),
    "noise file missing": (
        ["data.noise={{kind: file, path: {files}/absent.npz}}"],
        ["data.noise.path", "{files}/absent.npz", "correct the path"],
    ),
    "noise file not named": (["data.noise=file"], ["data.noise.path", "got null", "set it"]),
    "weights file unreadable": (
        ["data.features={{kind: resnet18, weights: {files}/text}}"],
        ["data.features.weights", "{files}/text", "fetch the file again"],
    ),
    "K < M": (
        ["data.partition.clients=2"],
        ["data.partition.clients", "at least groups (3)", "got 2", "raise clients or lower groups"],
    ),
    "K < M of the method": (
        ["method.grouping.groups=13"],
        ["method.grouping.groups is 13", "data.partition.clients is 12", "raise"],
    ),
    "zero clients per task": (
        ["data.partition.clients=0"],
        ["data.partition.clients", "a task has zero clients", "got 0", "raise clients"],
    ),
    "more clients than samples": (
        ["data.partition.clients=5000"],
        ["data.partition.clients", "got 370 samples", "lower clients"],
    ),
    "more tasks than classes": (
        ["data.partition.groups=11"],
        ["data.partition.groups", "got 11", "lower it"],
    ),
    "no clean image": (
        ["data.server.per_class=0"],
        ["data.server.per_class is 0", "clean images of every class", "raise data.server.per_class"],
    ),
    "one clean image cannot be calibrated on": (
        ["data.server.per_class=1"],
        ["data.server.per_class is 1", "raise data.server.per_class"],
    ),
    "more clean images than a class has": (
        ["data.server.per_class=1000"],
        ["data.server.per_class", "got 1000", "class 0 has 143", "lower it to 140"],
    ),
    "grouping rank above dimension": (
        ["method.grouping.rank=1000"],
        ["method.grouping.rank is 1000", "dimension 144", "lower method.grouping.rank"],
    ),
    "correction rank above dimension": (
        ["method.correction.rank=1000"],
        ["method.correction.rank is 1000", "dimension 144", "lower method.correction.rank"],
    ),
    "projection rank above dimension": (
        ["method.correction.projection_rank=145"],
        ["method.correction.projection_rank is 145", "dimension 144", "lower"],
    ),
    "correction rank above clean images": (
        ["method.correction.rank=21"],
        ["method.correction.rank is 21", "20 clean images per class", "raise data.server.per_class"],
    ),
    "cell larger than the image": (["data.features.cell=99"], ["data.features.cell", "got 99", "at most"]),
    "NaN in a data file": (
        ["data.dataset=mnist", "data.root={files}/nan"],
        ["{files}/nan/mnist.npz", "x_train must be uint8", "got float32", "write the file again"],
    ),
    "NaN features": (
        ["data.dataset={{name: synthetic, noise_std: 1e39}}"],
        ["data.features", "hog", "NaN or inf for training image 0", "check that image"],
    ),
    "inf features": (
        ["data.dataset={{name: synthetic, noise_std: 1e39}}", "data.features=pixels"],
        ["data.features", "pixels", "NaN or inf for training image 0", "check that image"],
    ),
    "placeholder unknown": (["output=runs/{{nme}}"], ["output", "runs/{{nme}}", "may only use {{name}}"]),
    "actors below one": (["runtime.actors=0"], ["runtime.actors", "got 0", "at least 1"]),
    "GPU slice too fine": (
        ["runtime.per_actor.gpus=0.00001"],
        ["runtime.per_actor.gpus", "got 1e-05", "finer than 0.0001"],
    ),
    "address for local": (
        ["runtime.address=auto"],
        ["runtime.address", "got 'auto'", "drop it"],
    ),
    "config unknown": (["@quickstrat"], ["'quickstrat'", "did you mean quickstart?", "raysim ls configs"]),
    "config not YAML": (["@{files}/text"], ["{files}/text", "must hold settings", "got str"]),
}


def arguments_of(overrides, files, output):
    """Command line of a case: the base, the output, then what is wrong; @ names another config."""
    given = [text.format(files=files) for text in overrides]
    config = next((text[1:] for text in given if text.startswith("@")), BASE[0])
    rest = [text for text in given if not text.startswith("@")]
    return ["run", config, *BASE[1:], f"output={output}", *rest]


def check(said, code, parts):
    assert said.code == code, said.err
    assert [part for part in parts if part not in said.err] == [], said.err
    assert "Traceback" not in said.err + said.out
    assert said.err.startswith("raysim: ")
    assert said.out == ""


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_and_nothing_is_written(cli, picture, old, files, tmp_path, case):
    overrides, parts = CASES[case]
    parts = [part.format(files=files) for part in parts]
    before = picture(tmp_path)

    check(cli(*arguments_of(overrides, files, tmp_path / "new" / "run")), 2, parts)
    assert picture(tmp_path) == before

    check(cli(*arguments_of(overrides, files, old), "--force"), 2, parts)
    assert picture(tmp_path) == before


@pytest.mark.parametrize(
    "case", ["unknown dataset", "misspelled key", "K < M", "no files in data.root", "NaN features"]
)
def test_bad_input_of_a_real_process(command, picture, old, files, tmp_path, case):
    overrides, parts = CASES[case]
    before = picture(tmp_path)

    said = command(*arguments_of(overrides, files, old), "--force")

    check(said, 2, [part.format(files=files) for part in parts])
    assert picture(tmp_path) == before


def test_a_split_of_another_dataset_is_refused(cli, picture, old, tmp_path):
    path = tmp_path / "synthetic.npz"
    small = "data.dataset={name: synthetic, per_class: 60, test_per_class: 2}"
    assert cli("data", "export", "quickstart", path, small).code == 0
    before = picture(tmp_path)

    said = cli("run", *BASE, f"output={old}", f"data.partition={{kind: file, path: {path}}}", "--force")

    check(said, 2, ["data.partition.path", str(path), "made from 'synthetic'", "use the dataset"])
    assert picture(tmp_path) == before


# ---- output --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "parts"),
    [
        ("a file", ["is a file", "choose another output"]),
        ("a file/below/it", ["cannot be written", "choose another output"]),
        ("/proc/raysim/run", ["cannot be written", "choose another output"]),
        ("notes", ["not empty and not a run directory", "choose another output"]),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--force",)], ids=["", "force"])
def test_an_output_that_cannot_be_used_is_refused(cli, picture, tmp_path, output, parts, flags):
    (tmp_path / "a file").write_text("precious")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("precious")
    before = picture(tmp_path)

    said = cli("run", *BASE, f"output={tmp_path / output}", *flags)

    check(said, 2, ["output", str(tmp_path / output), *parts])
    assert picture(tmp_path) == before


@pytest.mark.parametrize("where", ["", "run"], ids=["new run", "old run with --force"])
def test_a_read_only_output_folder_is_refused(command, picture, old, where):
    folder, output = old.parent, old if where else old.parent / "new"
    prefix = ()
    if os.geteuid():
        folder.chmod(0o555)
        old.chmod(0o555)
    else:  # permission bits do not hold root back, a read-only mount does
        mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
        prefix = ("unshare", "--mount", "sh", "-c", mount, str(folder))
    before = picture(folder)

    said = command("run", *BASE, f"output={output}", *(["--force"] if where else []), prefix=prefix)

    check(said, 2, ["output", str(output), "cannot be written", "writable or choose another output"])
    assert picture(folder) == before
    folder.chmod(0o755)
    old.chmod(0o755)


def test_a_finished_run_is_not_replaced_without_force(command, picture, old):
    before = picture(old)

    said = command("run", *BASE, f"output={old}")

    check(said, 2, ["output", str(old), "holds a finished run", "--force"])
    assert picture(old) == before


def test_a_folder_in_use_is_refused(cli, picture, old):
    from filelock import FileLock

    (old / "result.json").unlink()
    with FileLock(old / ".lock"):
        before = picture(old)
        said = cli("run", *BASE, f"output={old}", "--resume")

        check(said, 2, ["output", str(old), "in use by another process", "choose another output"])
        assert picture(old) == before


@pytest.mark.parametrize("state", ["finished", "unfinished"])
def test_resuming_with_another_config_names_key_and_both_values(cli, picture, old, state):
    if state == "unfinished":
        (old / "result.json").unlink()
    before = picture(old)

    said = cli("run", *BASE, f"output={old}", "--resume", "seed=7", "train.lr=0.125")

    check(said, 2, ["seed", "7", "train.lr", "0.125", "0.05", "--force"])
    assert picture(old) == before


def test_resume_and_force_together_are_refused(cli, picture, old):
    before = picture(old)

    check(cli("run", *BASE, f"output={old}", "--resume", "--force"), 2, ["--resume", "--force", "one of"])
    assert picture(old) == before


def test_resuming_nothing_is_refused(cli, picture, tmp_path):
    said = cli("run", *BASE, f"output={tmp_path / 'none'}", "--resume")

    check(said, 2, ["--resume", str(tmp_path / "none"), "holds no run", "without --resume"])
    assert picture(tmp_path) == {}


# ---- machines ------------------------------------------------------------------------------

RAY = ("quickstart", "train.rounds=2", "runtime.kind=ray")


@pytest.mark.ray
@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (
            ["runtime.actors=9"],
            ["asked for 9 client actors", "runtime.actors", "room for 8", "lower runtime.actors to 8"],
        ),
        (["runtime.actors=13"], ["runtime.actors is 13", "12 clients", "lower runtime.actors to 12"]),
        (
            ["runtime.per_actor.gpus=0.5"],
            ["0.5 GPUs each", "runtime.per_actor", "0 GPUs", "set runtime.per_actor.gpus to 0"],
        ),
        (
            ["runtime.per_actor.cpus=9"],
            ["9 CPUs", "runtime.per_actor", "room for 0", "lower runtime.per_actor.cpus to 8"],
        ),
    ],
    ids=["actors", "more actors than clients", "GPUs", "CPUs"],
)
def test_what_does_not_fit_is_refused(cli, picture, old, ray_session, overrides, parts):
    before = picture(old)

    check(cli("run", *RAY, f"output={old}", "--force", *overrides), 3, parts)
    assert picture(old) == before


@pytest.mark.ray
@pytest.mark.parametrize("address", ["127.0.0.1:1", "nosuchhost.invalid:6379", "nonsense"])
def test_an_address_without_a_cluster_is_refused_soon(command, picture, old, address):
    before = picture(old)

    said = command("run", *RAY, f"output={old}", "--force", f"runtime.address={address}")

    check(said, 3, ["runtime.address", repr(address), "ray start --head", "correct the address"])
    assert picture(old) == before


def test_the_table_is_complete():
    """The cases the issue names are all here."""
    named = ("unknown dataset", "unknown method", "unknown key", "K < M", "no clean image", "NaN features")
    assert set(named) <= set(CASES)
    assert sys.version_info >= (3, 11)
