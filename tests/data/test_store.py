"""The image store: one copy, the same everywhere, and no training labels in it."""

import dataclasses
import multiprocessing
import os
import pickle
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from raysim.data.datasets import DATASETS
from raysim.data.datasets.synthetic import Synthetic
from raysim.data.store import ImageStore, cache_root, materialise, prepare
from raysim.data.truth import true_labels, truth_file
from raysim.data.world import DataWorld
from raysim.errors import DataError
from raysim.seeding import stream
from raysim.settings import settings

# May change only together with the split of the digits, or the recipe of the synthetic set.
DIGITS_DIGEST = "1893fd4b51455e7eee0dad5592bdb665ce4d6165e2ba36ba0db5e1d277798126"
SYNTHETIC_DIGEST = "99845baa83b6ec539e9e65c843cd3ab5b71eddeaa0a280ec0a093bab863ab15e"


@settings
class WatchedSynthetic(Synthetic):
    """A synthetic set that notes every build and obeys files in ``desk``: ``hold`` and ``fail``."""

    desk: str
    choice_name = "watched_synthetic"

    def load(self, root, new_array=None):
        arrays = Synthetic.load(self, root, new_array)
        desk = Path(self.desk)
        with (desk / "builds").open("a") as file:
            file.write(f"{os.getpid()}\n")
        if (desk / "fail").exists():
            raise RuntimeError("told to fail")
        time.sleep(0.2)  # long enough for racing processes to meet
        while (desk / "hold").exists():
            time.sleep(0.01)
        return arrays


@pytest.fixture
def watched(tmp_path):
    (tmp_path / "desk").mkdir()
    (tmp_path / "desk" / "builds").touch()
    return WatchedSynthetic(desk=str(tmp_path / "desk"))


def num_builds(watched):
    return len((Path(watched.desk) / "builds").read_text().splitlines())


def digits():
    return materialise(DATASETS.get("digits")(), None)


def test_the_store_holds_what_the_dataset_gives(own_cache):
    store, arrays = digits(), DATASETS.get("digits")().load(None)

    np.testing.assert_array_equal(store.train_images, arrays.train_images)
    np.testing.assert_array_equal(store.test_images, arrays.test_images)
    np.testing.assert_array_equal(store.test_labels, arrays.test_labels)
    np.testing.assert_array_equal(true_labels(store), arrays.train_labels)
    assert (store.name, store.classes, store.image_shape) == ("digits", 10, (8, 8, 1))
    assert (store.num_train, store.num_test) == (1442, 355)
    assert (store.mean, store.std) == (arrays.mean, arrays.std)


def test_digests_are_the_same_on_every_machine(own_cache):
    assert digits().digest == DIGITS_DIGEST
    assert materialise(Synthetic(), None).digest == SYNTHETIC_DIGEST


def test_images_are_memory_mapped_and_read_only(own_cache):
    store = digits()

    for array in (store.train_images, store.test_images, store.test_labels):
        assert isinstance(array, np.memmap)
        assert not array.flags.writeable


def test_no_attribute_of_the_store_is_the_truth(own_cache):
    store = digits()
    truth = true_labels(store)

    for name in dir(store):
        value = getattr(store, name)
        assert not (isinstance(value, np.ndarray) and np.array_equal(value.ravel(), truth)), name
    assert [f.name for f in dataclasses.fields(ImageStore) if "train_labels" in f.name] == []
    for path in store.folder.iterdir():
        assert truth.tobytes() not in path.read_bytes(), path


def test_the_second_call_reads_nothing_again(own_cache, watched):
    first, second = materialise(watched, None), materialise(watched, None)

    assert first == second
    assert num_builds(watched) == 1


def write_cifar(folder: Path, arrays) -> str:
    folder.mkdir(parents=True)
    np.savez(folder / "cifar10.npz", **arrays)
    return str(folder)


def test_the_digest_depends_on_contents_and_not_on_paths(own_cache, tmp_path, small_arrays):
    arrays = small_arrays((32, 32, 3))
    changed = {**arrays, "y_train": arrays["y_train"][::-1]}
    roots = [
        write_cifar(tmp_path / "a", arrays),
        write_cifar(tmp_path / "deep" / "b", arrays),
        write_cifar(tmp_path / "c", changed),
    ]

    one, same, other = (materialise(DATASETS.get("cifar10")(), root) for root in roots)

    assert one.digest == same.digest
    assert other.digest != one.digest
    np.testing.assert_array_equal(true_labels(other), changed["y_train"])


def test_a_changed_source_file_gives_a_new_store(own_cache, tmp_path, small_arrays):
    arrays = small_arrays((32, 32, 3))
    root = write_cifar(tmp_path / "a", arrays)
    before = materialise(DATASETS.get("cifar10")(), root)
    arrays["x_train"][0] += 1
    np.savez(tmp_path / "a" / "cifar10.npz", **arrays)

    after = materialise(DATASETS.get("cifar10")(), root)

    assert after.folder != before.folder
    np.testing.assert_array_equal(after.train_images, arrays["x_train"])


def test_settings_change_the_store(own_cache):
    stores = [materialise(Synthetic(per_class=n), None) for n in (5, 6)]

    assert stores[0].folder != stores[1].folder
    assert [s.num_train for s in stores] == [50, 60]


def test_a_missing_dataset_is_refused_before_anything_is_written(own_cache, tmp_path):
    with pytest.raises(DataError, match="raysim data fetch mnist"):
        materialise(DATASETS.get("mnist")(), str(tmp_path))

    assert not own_cache.exists()


def test_a_vanished_truth_is_written_again(own_cache):
    store = digits()
    truth = true_labels(store)
    truth_file(own_cache, store.digest).unlink()
    with pytest.raises(DataError, match="start the run again"):
        true_labels(store)

    np.testing.assert_array_equal(true_labels(digits()), truth)


@pytest.mark.parametrize("damage", ["cut", "no images", "no meta", "bad meta"])
def test_a_damaged_store_is_built_again(own_cache, damage):
    store = digits()
    images = np.array(store.train_images)
    target = store.folder / ("meta.json" if "meta" in damage else "train_images.npy")
    if damage.startswith("no"):
        target.unlink()
    else:
        target.write_bytes(target.read_bytes()[:-100])

    np.testing.assert_array_equal(digits().train_images, images)


def test_a_truth_of_the_wrong_length_is_refused(own_cache):
    store = digits()
    np.save(truth_file(own_cache, store.digest), np.zeros(3, np.int64))

    with pytest.raises(DataError, match="must hold 1442 int64 labels"):
        true_labels(store)


def test_a_failed_build_leaves_nothing_behind(own_cache, watched):
    (Path(watched.desk) / "fail").touch()

    with pytest.raises(RuntimeError, match="told to fail"):
        materialise(watched, None)

    assert [p for p in (own_cache / "store").iterdir() if p.suffix != ".lock"] == []


def test_a_cache_that_cannot_be_written_says_so(own_cache):
    own_cache.write_text("a file where a folder should be")

    with pytest.raises(DataError, match="RAYSIM_CACHE"):
        digits()


def test_a_pickled_store_carries_no_images(own_cache):
    store = digits()
    assert store.train_images.nbytes > 50_000

    data = pickle.dumps(store)

    assert len(data) < 1000
    assert pickle.loads(data) == store


def _race(dataset, barrier, results):
    barrier.wait()
    store = materialise(dataset, None)
    results.put((store.digest, int(true_labels(store).sum()), float(store.train_images.sum())))


@pytest.mark.process
def test_racing_processes_end_with_one_copy(own_cache, watched):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.SimpleQueue()
    racers = [context.Process(target=_race, args=(watched, barrier, results)) for _ in range(4)]

    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)

    assert [racer.exitcode for racer in racers] == [0] * 4
    assert len({results.get() for _ in racers}) == 1
    assert num_builds(watched) == 1
    assert len([p for p in (own_cache / "store").iterdir() if p.is_dir()]) == 1


@pytest.mark.process
def test_a_killed_build_is_never_used_and_cleared_away(own_cache, watched):
    hold = Path(watched.desk) / "hold"
    hold.touch()
    child = multiprocessing.get_context("fork").Process(target=materialise, args=(watched, None))
    child.start()
    while num_builds(watched) == 0 and child.is_alive():
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert list((own_cache / "store").glob(".*/train_images.npy"))
    hold.unlink()

    store = materialise(watched, None)

    assert num_builds(watched) == 2
    assert [p for p in (own_cache / "store").iterdir() if p.is_dir()] == [store.folder]
    np.testing.assert_array_equal(store.train_images, Synthetic().load(None).train_images)


def test_cache_root_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path))
    assert cache_root() == tmp_path

    monkeypatch.delenv("RAYSIM_CACHE")
    assert cache_root() == Path.home() / ".cache" / "raysim"


def test_prepare_scales_and_normalises_by_channel():
    images = stream(0, "test").integers(0, 256, (3, 4, 5, 2), np.uint8)
    mean, std = (0.25, 0.5), (0.5, 2.0)

    unit, channel = (prepare(images, mean, std, mode) for mode in ("unit", "channel"))

    assert unit.shape == channel.shape == (3, 2, 4, 5)
    assert unit.dtype == channel.dtype == np.float32
    assert unit[1, 0, 2, 3] == np.float32(images[1, 2, 3, 0]) / np.float32(255)
    expected = (images / 255 - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(
        channel, expected.transpose(0, 3, 1, 2), atol=1e-6
    )  # float32 against float64


def test_prepare_only_transposes_floats():
    images = stream(0, "test").standard_normal((2, 3, 3, 1), np.float32)
    images.flags.writeable = False

    ready = prepare(images, (5.0,), (9.0,), "channel")

    np.testing.assert_array_equal(ready, images.transpose(0, 3, 1, 2))
    assert ready.flags.c_contiguous


@pytest.mark.parametrize(("mode", "expected"), [("unit", [0.0, 0.0]), ("channel", [-0.5, -0.25])])
def test_a_world_knows_black_as_model_input(mode, expected):
    store = SimpleNamespace(
        train_images=np.full((3, 4, 4, 2), 9, np.uint8), mean=(0.25, 0.5), std=(0.5, 2.0)
    )

    world = DataWorld(SimpleNamespace(normalize=mode), store)

    assert world.black.tolist() == expected


def test_prepare_refuses_an_unknown_mode():
    with pytest.raises(ValueError, match="'channel' or 'unit'"):
        prepare(np.zeros((1, 2, 2, 1), np.uint8), (0.0,), (1.0,), "imagenet")
