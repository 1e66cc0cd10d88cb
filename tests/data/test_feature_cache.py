"""Feature files: computed once, complete or absent, memory-mapped."""

import dataclasses
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from filelock import FileLock

from raysim.data.features import HogFeatures, PixelFeatures, feature_cache, feature_file
from raysim.errors import DataError
from raysim.seeding import stream


@dataclasses.dataclass(frozen=True)
class Store:
    """The attributes of an ``ImageStore`` that features need."""

    train_images: np.ndarray
    digest: str = "d1"

    @property
    def image_shape(self):
        return self.train_images.shape[1:]

    @property
    def num_train(self):
        return len(self.train_images)


class Means:
    """Mean of every channel; counts its calls and fails when told to."""

    def __init__(self, name="means", fail_at=None, error=RuntimeError):
        self.name, self.fail_at, self.error, self.calls = name, fail_at, error, 0

    def dimension(self, image_shape):
        return image_shape[2]

    def extract(self, images):
        self.calls += 1
        if self.calls == self.fail_at:
            raise self.error("told to fail")
        return images.mean(axis=(1, 2)).astype(np.float32)

    def fingerprint(self):
        return self.name

    def check_available(self):
        pass


@pytest.fixture
def images():
    return stream(0, "test.cache").integers(0, 256, (700, 8, 8, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks of 256 images: three for the 700 images."""
    monkeypatch.setattr(feature_cache, "CHUNK_BYTES", 1)


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_the_file_holds_the_features_of_every_image(images, tmp_path):
    extractor = HogFeatures(enlarge=2)

    rows = feature_file(Store(images), extractor, tmp_path / "new")

    assert np.array_equal(rows, extractor.extract(images))
    assert rows.dtype == np.float32
    assert isinstance(rows, np.memmap)
    assert not rows.flags.writeable
    assert [name.split("-")[0] for name in files(tmp_path / "new")] == ["hog"]


def test_a_second_call_computes_nothing(images, tmp_path):
    extractor = Means()
    first = feature_file(Store(images), extractor, tmp_path)

    second = feature_file(Store(images), extractor, tmp_path)

    assert extractor.calls == 3
    assert np.array_equal(first, second)


def test_other_images_and_other_settings_get_other_files(images, tmp_path):
    feature_file(Store(images), Means("a"), tmp_path)
    feature_file(Store(images), Means("b"), tmp_path)
    feature_file(Store(images[::-1], digest="d2"), Means("a"), tmp_path)

    assert len(files(tmp_path)) == 3


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_in_the_middle_leaves_nothing_and_the_next_call_works(images, tmp_path, error):
    with pytest.raises(error):
        feature_file(Store(images), Means(fail_at=2, error=error), tmp_path)
    assert files(tmp_path) == []

    rows = feature_file(Store(images), Means(), tmp_path)

    assert np.array_equal(rows, Means().extract(images))


SCRIPT = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    import numpy as np
    from raysim.data.features import feature_cache

    class Store:
        digest, image_shape = "d1", (4, 4, 1)
        train_images = np.ones((700, 4, 4, 1), np.uint8)

    class Slow:
        def dimension(self, shape): return 1
        def fingerprint(self): return "slow"
        def extract(self, images):
            with open(sys.argv[1] + "/log", "a") as log:
                log.write(f"{len(images)}\\n")
            if sys.argv[2] == "die":
                os._exit(9)
            time.sleep(0.2)
            return images.mean(axis=(1, 2)).astype(np.float32)

    feature_cache.CHUNK_BYTES = 1
    rows = feature_cache.feature_file(Store(), Slow(), Path(sys.argv[1]) / "cache")
    assert rows.shape == (700, 1) and (rows == 1).all()
    """
)


def start(folder, behaviour):
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), behaviour])


@pytest.mark.process
def test_racing_processes_compute_once(tmp_path):
    racers = [start(tmp_path, "work") for _ in range(3)]

    assert [racer.wait() for racer in racers] == [0, 0, 0]
    assert (tmp_path / "log").read_text().split() == ["256", "256", "188"]
    assert len(files(tmp_path / "cache")) == 1


@pytest.mark.process
def test_a_killed_process_leaves_no_file_and_its_part_is_swept(tmp_path):
    assert start(tmp_path, "die").wait() == 9
    (part,) = files(tmp_path / "cache")
    assert part.endswith(".part")

    assert start(tmp_path, "work").wait() == 0

    (name,) = files(tmp_path / "cache")
    assert name.endswith(".npy")


def test_only_parts_that_nobody_writes_are_swept(images, tmp_path):
    (tmp_path / "dead.x.part").write_bytes(b"")
    (tmp_path / "busy.x.part").write_bytes(b"")

    with FileLock(tmp_path / "busy.lock"):
        feature_file(Store(images), Means(), tmp_path)

    assert [name for name in files(tmp_path) if name.endswith(".part")] == ["busy.x.part"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_no_numbers_name_extractor_and_image(images, tmp_path, value):
    floats = images.astype(np.float32)
    floats[[300, 600]] = value

    with pytest.raises(
        DataError, match=r"extractor means gives NaN or inf for .* image 300; check"
    ):
        feature_file(Store(floats), Means(), tmp_path)
    assert files(tmp_path) == []


def test_float_pixels_are_a_view_of_the_images(images, tmp_path):
    np.save(tmp_path / "images.npy", images.astype(np.float32))
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")

    rows = feature_file(Store(mapped), PixelFeatures(), tmp_path / "cache")

    assert np.shares_memory(rows, mapped)
    assert np.array_equal(rows, images.reshape(700, -1))
    assert not (tmp_path / "cache").exists()


def test_a_view_is_checked_too(images, tmp_path):
    floats = images.astype(np.float32)
    floats[299, 0, 0, 0] = np.nan

    with pytest.raises(DataError, match="image 299"):
        feature_file(Store(floats), PixelFeatures(), tmp_path)


def test_byte_pixels_are_computed(images, tmp_path):
    rows = feature_file(Store(images), PixelFeatures(), tmp_path)

    assert np.array_equal(rows, PixelFeatures().extract(images))
    assert len(files(tmp_path)) == 1


def test_an_extractor_that_breaks_its_promise_is_named(images, tmp_path):
    class TwoMeans(Means):
        def dimension(self, image_shape):
            return 2

    with pytest.raises(DataError, match=r"means must return \(256, 2\) float32, got \(256, 3\)"):
        feature_file(Store(images), TwoMeans(), tmp_path)


def test_a_damaged_file_is_reported(images, tmp_path):
    feature_file(Store(images), Means(), tmp_path)
    (name,) = files(tmp_path)
    os.truncate(tmp_path / name, 300)

    with pytest.raises(DataError, match=r"\.npy is damaged .*delete it"):
        feature_file(Store(images), Means(), tmp_path)


def test_a_folder_that_cannot_be_written_is_reported(images, tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(DataError, match=r"cannot write features into .*RAYSIM_CACHE"):
        feature_file(Store(images), Means(), tmp_path / "file" / "cache")
