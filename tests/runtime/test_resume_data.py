"""``--resume`` goes on with the data that the run was started with, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from raysim.config import load_config
from raysim.data.features import FEATURES, Extractor
from raysim.data.split_file import export_split
from raysim.data.world import DriverData
from raysim.errors import DataError
from raysim.experiment import Experiment
from raysim.settings import settings

SHORT = ("train.rounds=2", "train.epochs=1", "runtime.kind=local")


@settings
class ScaledPixels(Extractor):
    """Pixels times the numbers in a file, as weights from a file would be."""

    path: str = ""

    def dimension(self, image_shape):
        return int(np.prod(image_shape))

    def extract(self, images):
        scales = np.array(json.loads(Path(self.path).read_text()), np.float32)
        return images.reshape(len(images), -1).astype(np.float32) * scales.repeat(32)

    def fingerprint(self):
        return f"scaled {Path(self.path).read_text()}"


@pytest.fixture(scope="module", autouse=True)
def _scaled_pixels(registered):
    registered(FEATURES, "scaled_pixels", ScaledPixels)


def client_data(folder, shift):
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for k in range(3):
        images = rng.integers(0, 255, (20, 8, 8, 1)).astype(np.uint8)
        np.savez(
            folder / f"client{k}.npz", images=images + np.uint8(shift), labels=np.arange(20) % 2
        )
    test = rng.integers(0, 255, (20, 8, 8, 1)).astype(np.uint8)
    np.savez(folder / "test.npz", images=test, labels=np.arange(20) % 2)
    return [
        f"data.root={folder}",
        "data.dataset=client_files",
        "data.partition=given",
        "data.noise=none",
        "data.server.per_class=0",
        "method=single",
    ]


def split_data(folder, shift):
    data = DriverData(load_config("quickstart").data, seed=shift)
    facts = {"dataset": "digits", "digest": data.store.digest, "seed": shift}
    export_split(folder.with_suffix(".npz"), split=data.split, noisy=data.noisy, **facts)
    return [f"data.partition={{kind: file, path: {folder}.npz}}", "data.noise=none"]


def label_data(folder, shift):
    config = load_config("quickstart", ["data.noise={kind: uniform, rho: 1.0}"])
    data = DriverData(config.data, seed=0)
    data.noisy.given[0][:5] = shift
    facts = {"dataset": "digits", "digest": data.store.digest, "seed": 0}
    export_split(folder.with_suffix(".npz"), split=data.split, noisy=data.noisy, **facts)
    return [f"data.partition={{kind: file, path: {folder}.npz}}", "data.noise=file"]


def level_data(folder, shift):
    config = load_config("quickstart", ["data.noise={kind: uniform, rho: 1.0}"])
    data = DriverData(config.data, seed=0)
    data.noisy.rate[0] = shift
    facts = {"dataset": "digits", "digest": data.store.digest, "seed": 0}
    export_split(folder.with_suffix(".npz"), split=data.split, noisy=data.noisy, **facts)
    return [f"data.partition={{kind: file, path: {folder}.npz}}", "data.noise=file"]


def feature_data(folder, shift):
    folder.with_suffix(".json").write_text(json.dumps([1.0, 1.0 + shift]))
    return [f"data.features={{kind: scaled_pixels, path: {folder}.json}}"]


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (client_data, "images and labels of data.dataset"),
        (split_data, "split of data.partition"),
        (label_data, "given labels of data.noise"),
        (level_data, "noise levels of data.noise"),
        (feature_data, "features of data.features"),
    ],
)
def test_other_data_is_refused_by_name(tmp_path, write, name):
    folder = tmp_path / "data"

    def experiment(shift):
        settings = [*SHORT, *write(folder, shift), f"output={tmp_path / 'run'}"]
        return Experiment(load_config("quickstart", settings))

    with experiment(0).rounds() as rounds:
        next(rounds)
    before = (tmp_path / "run/environment.json").read_bytes()

    with pytest.raises(DataError, match=f"--resume: the {name}"):
        experiment(1).run(resume=True)

    assert (tmp_path / "run/environment.json").read_bytes() == before
    assert experiment(0).run(resume=True).is_finished
