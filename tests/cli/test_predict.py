"""``raysim predict`` and ``raysim export`` on a real run of digits."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from sklearn.datasets import load_digits

from raysim.cli.export import command as export_command
from raysim.cli.predict import command as predict_command
from raysim.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run: three groups of four clients."""
    from raysim.config import load_config
    from raysim.experiment import Experiment

    path = tmp_path_factory.mktemp("predict") / "run"
    overrides = ["train.rounds=2", "train.epochs=1", "runtime.kind=local", f"output={path}"]
    Experiment(load_config("quickstart", overrides)).run()
    return path


@pytest.fixture(scope="module")
def test_digits():
    """Pixels (N, 8, 8) uint8 and labels of the test split, worked out here."""
    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    picked = np.zeros(len(pixels), bool)
    for label in range(10):
        picked[np.flatnonzero(bunch.target == label)[4::5]] = True
    return pixels[picked], bunch.target[picked]


def call(command, *arguments):
    """Return what a verb printed; its errors are raised."""
    done = CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def predict(*arguments):
    done = call(predict_command, *arguments, "--json")
    return json.loads(done.stdout.splitlines()[-1])


def result(run):
    return json.loads((run / "result.json").read_text())


@pytest.mark.parametrize("client", [0, 5, 11])
def test_the_test_images_give_the_accuracy_of_the_result(run, client):
    found = predict(run, "--client", client, "--data-test")

    assert client in found["clients"]
    (score,) = found["accuracy"]
    assert score["accuracy"] == result(run)["accuracy"]["per_client"][client]
    assert score["total"] == len(found["images"])
    right = sum(image["class"] == image["label"] for image in found["images"])
    assert right == score["correct"]


def test_npz_images_with_labels_give_the_same_accuracy(run, test_digits, tmp_path):
    pixels, labels = test_digits
    group = result(run)["groups"][7]
    task = predict(run, "--group", group, "--data-test")
    classes = sorted({int(image["label"]) for image in task["images"]})
    own = np.isin(labels, classes)
    np.savez(tmp_path / "own.npz", x=pixels[own], y=labels[own])

    found = predict(run, "--client", 7, tmp_path / "own.npz")

    assert found["accuracy"][0]["accuracy"] == result(run)["accuracy"]["per_client"][7]
    assert [image["class"] for image in found["images"]] == [i["class"] for i in task["images"]]


def test_files_folders_and_arrays_say_the_same(run, test_digits, tmp_path):
    pixels, labels = test_digits[0][:6], test_digits[1][:6]
    np.save(tmp_path / "six.npy", pixels)
    for row, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        (tmp_path / "sorted" / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "sorted" / str(label) / f"{row}.png")
        Image.fromarray(image).convert("RGB").save(tmp_path / f"{row}.png")

    arrays = predict(run, "--group", 1, tmp_path / "six.npy")["images"]
    folder = predict(run, "--group", 1, tmp_path / "sorted")
    files = predict(run, "--group", 1, *(tmp_path / f"{row}.png" for row in range(6)))["images"]

    by_row = {image["name"].split("/")[-1]: image for image in folder["images"]}
    for row, image in enumerate(arrays):
        for other in (files[row], by_row[f"{row}.png"]):
            assert (other["class"], other["probability"]) == (image["class"], image["probability"])
        assert by_row[f"{row}.png"]["label"] == str(labels[row])  # from the folder's name
        assert image["label"] is None
    assert folder["accuracy"][0]["total"] == 6


def test_the_probability_is_the_softmax_of_the_logits(run, test_digits, tmp_path):
    from raysim.runs.saved_models import load_model

    image = test_digits[0][3]
    Image.fromarray(image).save(tmp_path / "one.png")
    saved = load_model(run / "models" / "group-2.safetensors")
    weight, bias = np.split(saved.tree["trainable"], [640])
    ready = (image.reshape(64) / 255 - saved.facts.mean[0]) / saved.facts.std[0]
    logits = weight.reshape(10, 64) @ ready + bias
    expected = np.exp(logits) / np.exp(logits).sum()

    (found,) = predict(run, "--group", 2, tmp_path / "one.png", "--top", 10)["images"]

    order = np.argsort(-expected)
    assert [int(entry["class"]) for entry in found["top"]] == order.tolist()
    given = [entry["probability"] for entry in found["top"]]
    np.testing.assert_allclose(given, expected[order], rtol=1e-4)  # float32 logits


def test_other_sizes_are_resized_and_said(run, test_digits, tmp_path):
    large = Image.fromarray(test_digits[0][0]).resize((24, 16), Image.Resampling.NEAREST)
    large.convert("RGB").save(tmp_path / "large.png")

    done = call(predict_command, run, "--group", 0, tmp_path / "large.png")

    assert "1 images were cut to a centred 8x8 shape and resized" in done.stderr
    assert "1 images were converted to grey" in done.stderr
    assert done.stdout.startswith(f"{tmp_path / 'large.png'}  ")


def test_channels_first_is_understood_and_said(run, test_digits, tmp_path):
    np.save(tmp_path / "last.npy", test_digits[0][:5, :, :, None])
    np.save(tmp_path / "first.npy", test_digits[0][:5, None])

    last, first = (
        call(predict_command, run, "--group", 0, tmp_path / f"{name}.npy")
        for name in ("last", "first")
    )

    assert first.stdout.replace("first.npy", "last.npy") == last.stdout
    assert "first.npy was read as (N, C, H, W)" in first.stderr


def test_csv_has_a_row_per_image(run, test_digits, tmp_path):
    np.savez(tmp_path / "x.npz", images=test_digits[0][:40], labels=test_digits[1][:40])
    out = tmp_path / "found.csv"

    done = call(predict_command, run, "--client", 0, tmp_path / "x.npz", "--top", 2, "--out", out)

    rows = list(csv.DictReader(out.open()))
    seen = predict(run, "--client", 0, tmp_path / "x.npz", "--top", 2)
    assert [row["class"] for row in rows] == [image["class"] for image in seen["images"]]
    assert [row["class_2"] for row in rows] == [i["top"][1]["class"] for i in seen["images"]]
    assert [int(row["label"]) for row in rows] == test_digits[1][:40].tolist()
    right = sum(row["class"] == row["label"] for row in rows)
    first, last = done.stdout.splitlines()
    assert first.startswith(f"accuracy {100 * right / 40:.2f} % ({right} of 40)")
    assert last == f"40 predictions written to {out}"


def test_older_runs_predict_from_their_checkpoint(run, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(run, old, ignore=shutil.ignore_patterns("models"))

    assert (
        predict(old, "--group", 1, "--data-test")["images"]
        == (predict(run, "--group", 1, "--data-test")["images"])
    )
    done = call(export_command, old, "--to", tmp_path / "files")
    assert done.stdout == f"3 models and index.json written to {tmp_path / 'files'}\n"
    made = {file.name: file.read_bytes() for file in (tmp_path / "files").iterdir()}
    assert made == {file.name: file.read_bytes() for file in (run / "models").iterdir()}


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((), ConfigError, "give IMAGES or --data-test"),
        (("--data-test",), ConfigError, "3 models (group/0, group/1, group/2); say which"),
        (("--data-test", "--group", 3), ConfigError, "no model of group 3"),
        (("--data-test", "--client", 12), ConfigError, "client 12 is not in"),
        (("--data-test", "--client", 1, "--group", 0), ConfigError, "contradict"),
        (("--group", 0, "nothing.png"), DataError, "no file or folder nothing.png"),
        (("--group", 0, "--data-test", "--out", "no/x.csv"), ConfigError, "--out: no folder"),
    ],
)
def test_wrong_questions_are_refused(run, arguments, error, text):
    with pytest.raises(error) as refused:
        call(predict_command, run, *arguments)

    assert text in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros((2, 8, 8, 1), np.float32), "must hold uint8 pixels (0 to 255), got float32"),
        (np.zeros((2, 8, 8, 5), np.uint8), "must hold images of 1 channels, last"),
        (np.zeros((2, 2, 2, 2, 2), np.uint8), "must hold images (N, H, W, C)"),
        (np.zeros((0, 8, 8, 1), np.uint8), "must hold images (N, H, W, C)"),
        (np.array([{}]), "must be an array file without objects"),
    ],
)
def test_wrong_arrays_are_refused(run, tmp_path, array, text):
    np.save(tmp_path / "x.npy", array)

    with pytest.raises(DataError) as refused:
        call(predict_command, run, "--group", 0, tmp_path / "x.npy")

    assert text in str(refused.value)


@pytest.mark.parametrize("labels", [[0], [0, 10], [0.0, 1.0]])
def test_wrong_labels_are_refused(run, tmp_path, labels):
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 8, 8), np.uint8), y=labels)

    with pytest.raises(DataError, match="labels must be"):
        call(predict_command, run, "--group", 0, tmp_path / "x.npz")


def test_a_file_that_is_no_image_is_named(run, tmp_path):
    (tmp_path / "x.png").write_bytes(b"no image")

    with pytest.raises(DataError, match=r"x\.png must be a readable image"):
        call(predict_command, run, "--group", 0, tmp_path / "x.png")
    Image.fromarray(np.full((8, 8), 3000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(DataError, match="must have 8 bits per channel"):
        call(predict_command, run, "--group", 0, tmp_path / "deep.png")
