"""ImageNet networks as extractors, with random weights that the test writes."""

import importlib.util
import io
import shutil
import urllib.error

import numpy as np
import pytest
import torch

from raysim.data.datasets import DATASETS, data_root
from raysim.data.features import FEATURES, Lite0Features, ResNet18Features, pretrained
from raysim.errors import ConfigError, DataError
from raysim.seeding import stream


def random_images(*shape):
    return stream(0, "test.pretrained", *shape).integers(0, 256, shape, dtype=np.uint8)


def _resnet18():
    from torchvision.models import resnet18

    return resnet18(weights=None)


def _lite0():
    from efficientnet_lite_pytorch import EfficientNet

    return EfficientNet.from_name("efficientnet-lite0")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Return a function: kind -> file with a random state_dict of that network."""
    folder = tmp_path_factory.mktemp("weights")
    for kind, make in (("resnet18", _resnet18), ("lite0", _lite0)):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            torch.save(make().state_dict(), folder / f"{kind}.pth")
    return lambda kind: str(folder / f"{kind}.pth")


@pytest.fixture(params=["resnet18", "lite0"])
def extractor(request, weights):
    """Return each extractor with small images and batches."""
    kind = request.param
    return FEATURES.get(kind)(weights=weights(kind), size=64, batch_size=4)


def test_resnet18_rows_are_the_pooled_activations_of_torchvisions_network(weights):
    from torchvision.models import ResNet18_Weights

    images = random_images(3, 32, 32, 3)
    model = _resnet18()
    model.load_state_dict(torch.load(weights("resnet18"), weights_only=True))
    pooled = []
    model.avgpool.register_forward_hook(lambda *call: pooled.append(call[-1].flatten(1)))
    prepare = ResNet18_Weights.IMAGENET1K_V1.transforms(resize_size=64, crop_size=64)
    planes = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    with torch.inference_mode():
        model.eval()(prepare(planes))

    rows = ResNet18Features(weights=weights("resnet18"), size=64).extract(images)

    np.testing.assert_allclose(rows, pooled[0].numpy(), rtol=1e-4, atol=1e-5)


def test_lite0_rows_are_averages_of_the_last_convolution(weights):
    images = random_images(2, 64, 64, 3)  # no resizing at size 64
    model = _lite0()
    model.load_state_dict(torch.load(weights("lite0"), weights_only=True))
    planes = torch.from_numpy((images.astype(np.float32) - 127) / 128).permute(0, 3, 1, 2)
    with torch.inference_mode():
        expected = model.eval().extract_features(planes).mean(dim=(2, 3)).numpy()

    rows = Lite0Features(weights=weights("lite0"), size=64).extract(images)

    np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-6 * abs(expected).max())


def test_rows_are_as_long_as_announced_and_differ_between_images(extractor):
    rows = extractor.extract(random_images(3, 32, 32, 3))

    assert rows.shape == (3, extractor.dimension((32, 32, 3)))
    assert rows.dtype == np.float32
    assert not np.allclose(rows[0], rows[1], rtol=0.01, atol=0)


def test_a_row_has_the_same_bits_whatever_images_come_with_it(extractor):
    images = random_images(10, 32, 32, 3)
    whole = extractor.extract(images)

    assert np.array_equal(extractor.extract(images[3:]), whole[3:])
    assert np.array_equal(extractor.extract(images[7:8]), whole[7:8])
    assert np.array_equal(extractor.extract(images[::-1]), whole[::-1])


def test_grey_is_colour_with_equal_channels_and_floats_are_shares_of_255(extractor):
    grey = random_images(2, 32, 32, 1)
    rows = extractor.extract(grey)

    assert np.array_equal(extractor.extract(np.repeat(grey, 3, axis=3)), rows)
    floats = extractor.extract(grey.astype(np.float32) / 255)
    np.testing.assert_allclose(floats, rows, rtol=1e-3, atol=1e-4 * abs(rows).max())


def test_other_channel_counts_are_refused(extractor):
    with pytest.raises(ConfigError, match=r"data\.features .* 1 or 3 channels, got \(32, 32, 4\)"):
        extractor.dimension((32, 32, 4))


def test_the_number_of_torch_threads_is_put_back(extractor):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        extractor.extract(random_images(1, 32, 32, 3))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_fingerprints_follow_the_contents_of_the_weights(weights, tmp_path):
    copy, other = tmp_path / "copy.pth", tmp_path / "other.pth"
    shutil.copy(weights("resnet18"), copy)
    torch.save(_resnet18().state_dict(), other)
    first, second, third = (
        ResNet18Features(weights=str(path)).fingerprint()
        for path in (weights("resnet18"), copy, other)
    )

    assert first == second
    assert first != third
    assert first != ResNet18Features().fingerprint()
    assert first != ResNet18Features(weights=str(copy), size=64).fingerprint()


def test_a_missing_file_is_reported_before_any_work(tmp_path):
    extractor = ResNet18Features(weights=str(tmp_path / "none.pth"))

    with pytest.raises(DataError, match=r"data\.features\.weights: no file .*none\.pth; copy a"):
        extractor.check_available()
    with pytest.raises(DataError, match=r"none\.pth"):
        extractor.extract(random_images(1, 32, 32, 3))
    with pytest.raises(DataError, match=r"none\.pth"):
        extractor.fingerprint()


def test_lite0_says_how_to_get_its_weights(own_cache):
    with pytest.raises(DataError, match=r"efficientnet-lite0.*raysim data fetch lite0"):
        Lite0Features().check_available()


def test_lite0_says_how_to_get_its_package(weights, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(DataError, match=r"pip install raysim\[lite0\]"):
        Lite0Features(weights=weights("lite0")).check_available()


def test_weights_of_another_network_are_refused(weights):
    extractor = ResNet18Features(weights=weights("lite0"), size=64)

    with pytest.raises(DataError, match="does not hold the weights of resnet18"):
        extractor.extract(random_images(1, 32, 32, 3))


class _Trap:
    """Would run code when unpickled."""

    def __reduce__(self):
        return print, ("unpickled",)


def _cut_off():
    whole = io.BytesIO()
    torch.save({"a": torch.zeros(9)}, whole, _use_new_zipfile_serialization=False)
    return whole.getvalue()[:18]


@pytest.mark.parametrize("content", [b"", b"not a torch file", _cut_off(), _Trap(), [1, 2]])
def test_files_that_are_no_state_dict_are_refused(content, tmp_path, capsys):
    path = tmp_path / "bad.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)

    with pytest.raises(DataError, match=r"bad\.pth .*state_dict"):
        ResNet18Features(weights=str(path), size=64).extract(random_images(1, 32, 32, 3))
    assert capsys.readouterr().out == ""


def test_torchvisions_weights_are_downloaded_once(weights, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    calls = []

    def download(url, path, hash_prefix, progress):
        calls.append((url.rpartition("/")[2], hash_prefix))
        shutil.copy(weights("resnet18"), path)

    monkeypatch.setattr(torch.hub, "download_url_to_file", download)

    ResNet18Features().check_available()
    rows = ResNet18Features(size=64).extract(random_images(2, 32, 32, 3))

    local = ResNet18Features(weights=weights("resnet18"), size=64)
    assert calls == [("resnet18-f37072fd.pth", "f37072fd")]
    assert np.array_equal(rows, local.extract(random_images(2, 32, 32, 3)))
    assert ResNet18Features().path().parent == tmp_path / "hub" / "checkpoints"


def test_a_failed_download_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))

    def download(*arguments, **named):
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(torch.hub, "download_url_to_file", download)

    with pytest.raises(DataError, match=r"cannot be downloaded .*no route.*data\.features\.weigh"):
        ResNet18Features().check_available()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 100}, "size must be a multiple of 32, got 100; use 128"),
        ({"size": 16}, "size must be at least 32"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"threads": 0}, "threads must be at least 1"),
    ],
)
def test_lite0_refuses_settings_out_of_range(settings, message):
    with pytest.raises(ConfigError, match=message):
        Lite0Features(**settings)


@pytest.mark.slow
@pytest.mark.data
def test_lite0_separates_cifar10_as_measured_before():
    # raysim/docs/sheets/datasets.md: 200 clean images per class, nearest subspace, rank 20: 80 %
    dataset = DATASETS.get("cifar10")()
    if not dataset.sources(None) or not (data_root(None) / pretrained.LITE0_FILE).is_file():
        pytest.skip("run `raysim data fetch cifar10 lite0`")
    arrays, rng = dataset.load(None), stream(0, "test.lite0")
    labels = arrays.train_labels
    clean = [rng.permutation(np.flatnonzero(labels == c))[:200] for c in range(10)]
    unseen = rng.permutation(np.setdiff1d(np.arange(len(labels)), np.concatenate(clean)))[:1000]
    extractor = Lite0Features()
    rows = extractor.extract(arrays.train_images[unseen]).astype(float)

    lengths = []
    for ids in clean:
        known = extractor.extract(arrays.train_images[ids]).astype(float)
        basis = np.linalg.eigh(known.T @ known)[1][:, -20:]
        lengths.append(np.linalg.norm(rows @ basis, axis=1))

    accuracy = (np.argmax(lengths, axis=0) == labels[unseen]).mean()
    assert 0.77 < accuracy < 0.84  # 1,000 images: a standard deviation of 0.013
