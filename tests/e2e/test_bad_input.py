"""Bad input: a clear error, the right exit code, and an output folder that nobody touched."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def files(tmp_path):
    """Paths that cases refer to, in the folder ``files``."""
    folder = tmp_path / "files"
    (folder / "empty").mkdir(parents=True)
    (folder / "text").write_text("not an archive")
    images = np.full((20, 28, 28), np.nan, np.float32)
    labels = np.arange(20) % 10
    (folder / "nan").mkdir()
    np.savez(
        folder / "nan" / "mnist.npz", x_train=images, y_train=labels, x_test=images, y_test=labels
    )
    return folder


CASES = {
    # name: (overrides, what the text must hold: the key, what was found, what to do)
    "unknown dataset": (
        ["data.dataset=nosuch"],
        ["data.dataset", "unknown dataset 'nosuch'", "one of: cifar10"],
    ),
    "misspelled dataset": (
        ["data.dataset=digit"],
        ["data.dataset", "'digit'", "did you mean digits?"],
    ),
    "unknown method": (["method=fbnll"], ["method", "'fbnll'", "did you mean fb_nll?"]),
    "unknown model": (["model=logistics"], ["model", "'logistics'", "did you mean logistic?"]),
    "unknown noise": (["data.noise=unifrm"], ["data.noise", "'unifrm'", "did you mean uniform?"]),
    "unknown partition": (
        ["data.partition=task"],
        ["data.partition", "'task'", "did you mean tasks?"],
    ),
    "unknown features": (["data.features=hogs"], ["data.features", "'hogs'", "did you mean hog?"]),
    "unknown key": (["nonsense=3"], ["nonsense is not a setting", "got 3", "remove it"]),
    "misspelled key": (
        ["data.noise.rte=0.1"],
        ["data.noise.rte is not a setting; did you mean rate?", "got 0.1"],
    ),
    "misspelled section": (
        ["trian.lr=0.1"],
        ["trian is not a setting; did you mean train?", "0.1"],
    ),
    "no key=value": (["train.rounds"], ["'train.rounds'", "key=value"]),
    "text for a number": (
        ["train.rounds=many"],
        ["train.rounds", "'many'", "must be a valid integer"],
    ),
    "value for a section": (["train=5"], ["train must be a section", "got 5"]),
    "rate out of range": (
        ["data.noise.rate=1.5"],
        ["data.noise.rate", "got 1.5", "must be in [0, 1)"],
    ),
    "negative lr": (["train.lr=-1"], ["train.lr", "got -1.0", "try 0.05"]),
    "lr not a number": (["train.lr=nan"], ["train.lr", "got nan", "try 0.05"]),
    "no round": (["train.rounds=0"], ["train.rounds", "got 0", "raise it"]),
    "nobody takes part": (["train.participation=0"], ["train.participation", "got 0.0", "(0, 1]"]),
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
        ["data.partition.path", "is missing"],
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
        ["data.partition.clients", "at least 1", "got 0", "raise clients"],
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
        [
            "data.server.per_class is 0",
            "clean images of every class",
            "raise data.server.per_class",
        ],
    ),
    "one clean image cannot be calibrated on": (
        ["data.server.per_class=1"],
        ["data.server.per_class is 1", "raise data.server.per_class"],
    ),
    "no clean image for a hybrid": (
        ["method=fedcorr_fb_nll", "train.rounds=4", "data.server.per_class=0"],
        ["data.server.per_class is 0", "label correction needs", "raise data.server.per_class"],
    ),
    "no public image for RHFL": (
        ["method=rhfl", "data.server.per_class=0"],
        ["data.server.per_class is 0", "RHFL", "public images", "raise data.server.per_class"],
    ),
    "no validation image for ClipFL": (
        ["method=clipfl", "data.server.per_class=0"],
        ["data.server.per_class is 0", "ClipFL", "clean images", "raise data.server.per_class"],
    ),
    "ClipFL prunes everyone": (
        ["method={{name: clipfl, prune_rate: 1}}"],
        ["method.prune_rate", "got 1", "must be in [0, 1)", "would prune everyone", "e.g. 0.5"],
    ),
    "K < M for IFCA": (
        ["method=ifca_pfl", "data.partition.clients=2"],
        ["data.partition.clients", "at least groups (3)", "got 2", "raise clients or lower groups"],
    ),
    "FedNova with adam": (
        ["server.optimizer=fednova", "train.optimizer=adam"],
        ["server.optimizer is fednova", "train.optimizer is adam", "set train.optimizer to sgd"],
    ),
    "FedCorr without a round for stage 3": (
        ["method=fedcorr"],
        ["train.rounds is 2", "FedCorr's three stages need at least 4", "raise train.rounds"],
    ),
    "ClipFL without a round for Phase III": (
        ["method={{name: clipfl, score_rounds: 2}}"],
        ["train.rounds is 2", "ClipFL's Phases I and III need at least 3", "raise train.rounds"],
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
        [
            "method.correction.rank is 21",
            "20 clean images per class",
            "raise data.server.per_class",
        ],
    ),
    "cell larger than the image": (
        ["data.features.cell=99"],
        ["data.features.cell", "got 99", "at most"],
    ),
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
    "placeholder unknown": (
        ["output=runs/{{nme}}"],
        ["output", "runs/{{nme}}", "may only use {{name}}"],
    ),
    "actors below one": (["runtime.actors=0"], ["runtime.actors", "got 0", "at least 1"]),
    "GPU slice too fine": (
        ["runtime.per_actor.gpus=0.00001"],
        ["runtime.per_actor.gpus", "got 1e-05", "finer than 0.0001"],
    ),
    "address for local": (
        ["runtime.address=auto"],
        ["runtime.address", "got 'auto'", "drop it"],
    ),
    "config unknown": (
        ["@quickstrat"],
        ["'quickstrat'", "did you mean quickstart?", "raysim ls configs"],
    ),
    "config not YAML": (["@{files}/text"], ["{files}/text", "must hold settings", "got str"]),
}


@pytest.fixture
def arguments(base, files):
    """Return a function: the command line of a case; a text with @ names another config."""

    def of(case, output):
        given = [text.format(files=files) for text in CASES[case][0]]
        config = next((text[1:] for text in given if text.startswith("@")), base[0])
        rest = [text for text in given if not text.startswith("@")]
        return ["run", config, *base[1:], f"output={output}", *rest]

    return of


@pytest.fixture
def parts(files):
    """Return a function: what the error of a case must say."""
    return lambda case: [text.format(files=files) for text in CASES[case][1]]


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_and_nothing_is_written(
    cli, refused, picture, arguments, parts, tmp_path, case
):
    before = picture(tmp_path)

    said = cli(*arguments(case, tmp_path / "new" / "run"))

    refused(said, 2, parts(case))
    assert picture(tmp_path) == before


@pytest.mark.parametrize("case", CASES)
def test_bad_input_does_not_cost_the_old_run(cli, picture, arguments, old, case):
    before = picture(old)

    said = cli(*arguments(case, old), "--force")

    assert said.code == 2
    assert picture(old) == before


@pytest.mark.parametrize(
    "case", ["unknown dataset", "misspelled key", "K < M", "no files in data.root", "NaN features"]
)
def test_bad_input_of_a_real_process(
    command, refused, picture, arguments, parts, old, tmp_path, case
):
    before = picture(tmp_path)

    said = command(*arguments(case, old), "--force")

    refused(said, 2, parts(case))
    assert picture(tmp_path) == before


def test_a_split_of_another_dataset_is_refused(cli, refused, picture, base, old, tmp_path):
    path = tmp_path / "synthetic.npz"
    small = "data.dataset={name: synthetic, per_class: 60, test_per_class: 2}"
    assert cli("data", "export", "quickstart", path, small).code == 0
    before = picture(tmp_path)

    from_file = f"data.partition={{kind: file, path: {path}}}"
    said = cli("run", *base, f"output={old}", from_file, "--force")

    refused(said, 2, ["data.partition.path", str(path), "made from 'synthetic'", "use the dataset"])
    assert picture(tmp_path) == before
