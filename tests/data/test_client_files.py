"""Clients' own data: what is read from files and folders, and whole runs on it."""

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from raysim.config import load_config
from raysim.data.world import DriverData
from raysim.errors import ConfigError, DataError
from raysim.experiment import Experiment
from raysim.seeding import stream

TASKS = ((0, 1, 2), (3, 4, 5), (6, 7, 8, 9))
OWN = ("data.dataset=client_files", "data.partition=given", "data.noise=none")


def parts():
    """Digits of six clients, two per task, of the server and of the test: ids and labels."""
    digits = load_digits()
    order = stream(0, "test.clients").permutation(len(digits.target))
    server, test, rest = np.split(order, [150, 400])
    by_task = [rest[np.isin(digits.target[rest], task)] for task in TASKS]
    clients = [ids for own in by_task for ids in np.array_split(own, 2)]
    return digits, clients, server, test


def write(folder, *, truth=False, server=True, noise=0.25):
    """Write the clients' npz files; a quarter of their labels is one class too high."""
    digits, clients, clean, test = parts()
    images = (digits.images * 15.9).astype(np.uint8)
    folder.mkdir(exist_ok=True)
    for k, ids in enumerate(clients):
        true = digits.target[ids]
        wrong = np.arange(len(ids)) % 4 == 0 if noise else np.zeros(len(ids), bool)
        given = np.where(wrong, (true + 1) % 10, true)
        more = {"true_labels": true} if truth else {}
        np.savez(folder / f"site-{k + 1}.npz", images=images[ids], labels=given, **more)
    np.savez(folder / "test.npz", images=images[test], labels=digits.target[test])
    if server:
        np.savez(folder / "server.npz", images=images[clean], labels=digits.target[clean])
    return folder


def config(folder, method, *overrides, out="run"):
    quick = ("train.rounds=2", "runtime.kind=local", f"output={folder.parent}/{out}")
    own = (*OWN, f"data.root={folder}", f"method={method}")
    return load_config("quickstart", [*own, *quick, *overrides])


@pytest.fixture(scope="module")
def blind(tmp_path_factory):
    """Six clients whose true labels nobody knows; tasks.yaml says who has which task."""
    folder = write(tmp_path_factory.mktemp("blind") / "clients")
    (folder / "tasks.yaml").write_text(
        "low: {classes: [0, 1, 2], clients: [site-1, site-2]}\n"
        "middle: {classes: [3, 4, 5], clients: [site-3, site-4]}\n"
        "high: {classes: [6, 7, 8, 9], clients: [site-5, site-6]}\n"
    )
    return folder


def test_clients_hold_their_own_rows_and_given_labels(blind):
    data = DriverData(config(blind, "single").data, 0)

    digits, clients, clean, _ = parts()
    for k, record in enumerate(data.client_records()):
        true = digits.target[clients[k]]
        given = np.where(np.arange(len(true)) % 4 == 0, (true + 1) % 10, true)
        assert record.labels.tolist() == given.tolist()
        pixels = np.asarray(data.store.train_images[record.sample_ids])[..., 0]
        assert (pixels == (digits.images[clients[k]] * 15.9).astype(np.uint8)).all()
    ids, labels = data.clean
    assert labels.tolist() == digits.target[clean].tolist()
    assert not set(ids) & {i for r in data.client_records() for i in r.sample_ids}
    assert data.split.tasks == TASKS
    assert data.split.task_of.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.test_classes()[5] == (6, 7, 8, 9)


def test_fb_nll_runs_and_invents_no_truth(blind):
    result = Experiment(config(blind, "fb_nll", out="fb")).run()

    assert result.summary["labels"] == {"noise_before": None, "noise_after": None}
    assert result.summary["ari"] == 1.0  # tasks.yaml says who belongs together
    assert result.summary["groups"] == [0, 0, 1, 1, 2, 2]
    assert result.summary["correction"] is not None
    assert '"noise_before"' not in (result.run_dir / "rounds.jsonl").read_text()
    kept = sorted(p.name for p in (result.run_dir / "artifacts").iterdir())
    assert kept == [
        "labels_corrected.npy",
        "labels_given.npy",
        "repaired_labels.npy",
        "similarity.npy",
    ]
    assert result.accuracy > 0.5


def test_without_tasks_there_is_no_ari_either(tmp_path):
    folder = write(tmp_path / "clients", server=False)
    how = ("data.server.per_class=0", "method.grouping.groups=3")

    result = Experiment(config(folder, "fb_nll_minus", *how)).run()

    assert result.summary["ari"] is None
    assert result.summary["groups"] == [0, 0, 1, 1, 2, 2]
    assert '"ari"' not in (result.run_dir / "rounds.jsonl").read_text()


def test_true_labels_are_scored(tmp_path):
    folder = write(tmp_path / "clients", truth=True)

    result = Experiment(config(folder, "fb_nll")).run()

    _, clients, _, _ = parts()
    wrong, labels = sum(-(-len(ids) // 4) for ids in clients), result.summary["labels"]
    assert labels["noise_before"] == pytest.approx(wrong / sum(map(len, clients)))
    assert labels["noise_after"] < labels["noise_before"] / 2
    assert result.summary["ari"] == 1.0  # the classes of the true labels are the tasks


def test_the_command_shows_what_is_unknown_as_a_dash(blind):
    from click.testing import CliRunner

    from raysim.cli.main import cli

    result = Experiment(config(blind, "single", out="single")).run()
    said = CliRunner().invoke(cli, ["show", str(result.run_dir)])

    assert said.exit_code == 0
    row = next(line.split() for line in said.output.splitlines() if line.startswith("single"))
    assert row[8:10] == ["-", "-"]


def test_photos_in_folders(tmp_path):
    digits, clients, clean, test = parts()
    named = {f"hospital{k}": ids[:30] for k, ids in enumerate(clients)}
    for name, ids in {**named, "server": clean[:100], "test": test[:60]}.items():
        for i in ids:
            place = tmp_path / "photos" / name / f"digit {digits.target[i]}"
            place.mkdir(parents=True, exist_ok=True)
            grey = (digits.images[i] * 15.9).astype(np.uint8)
            Image.fromarray(grey).resize((32, 32)).save(place / f"{i}.png")
    overrides = ("data.dataset={name: client_files, size: 32}", "data.features=hog")

    chosen = config(tmp_path / "photos", "fb_nll_minus", *overrides, "train.rounds=1")
    data = DriverData(chosen.data, 0)
    result = Experiment(chosen).run()

    assert data.store.class_names == tuple(f"digit {c}" for c in range(10))
    assert data.image_shape == (32, 32, 3)
    assert [len(ids) for ids in data.split.clients] == [30] * 6
    assert data.split.tasks[0] == tuple(sorted(set(digits.target[clients[0][:30]])))
    assert result.summary["clients"] == 6


def test_a_share_of_every_client_is_held_out(tmp_path):
    folder = write(tmp_path / "clients", server=False)
    (folder / "test.npz").unlink()
    held = "data.dataset={name: client_files, test_fraction: 0.2}"

    data = DriverData(config(folder, "single", held, "data.server.per_class=0").data, 0)

    clients = parts()[1]
    assert [len(ids) for ids in data.split.clients] == [len(c) - len(c) // 5 for c in clients]
    assert data.store.num_test == sum(len(c) // 5 for c in clients)
    train = {image.tobytes() for image in np.asarray(data.store.train_images)}
    assert not any(image.tobytes() in train for image in np.asarray(data.store.test_images))


def test_float_images_stay_as_they_are(tmp_path):
    for k, name in enumerate(("a", "b", "test")):
        images = stream(0, "test.float", k).normal(size=(12, 8, 8))
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.arange(12) % 3)

    data = DriverData(config(tmp_path, "single", "data.server.per_class=0").data, 0)

    last = np.load(tmp_path / "b.npz")["images"]
    found = data.spec().open().images(data.split.clients[1])
    np.testing.assert_array_equal(found[:, 0], last.astype(np.float32))


def test_the_saved_config_repeats_the_run(blind):
    first = Experiment(config(blind, "single", out="once")).run()
    saved = load_config(first.run_dir / "config.yaml", [f"output={blind.parent}/twice"])

    again = Experiment(saved).run()

    assert again.summary["digest"]["models"] == first.summary["digest"]["models"]


@pytest.mark.parametrize("method", ["fb_nll", "clipfl"])
def test_no_clean_images_are_taken_from_clients(tmp_path, method):
    folder = write(tmp_path / "clients", server=False)

    with pytest.raises(ConfigError, match=r"no clean set of the server, .* add server\.npz"):
        Experiment(config(folder, method)).prepare()
    with pytest.raises(ConfigError, match="per_class"):
        Experiment(config(folder, method, "data.server.per_class=0")).prepare()


def test_a_clean_set_without_a_class_is_refused_for_correction(tmp_path):
    folder = write(tmp_path / "clients")
    digits, _, _, _ = parts()
    ids = np.flatnonzero(digits.target != 7)[:100]
    images = (digits.images[ids] * 15.9).astype(np.uint8)
    change(folder, "server.npz", images=images, labels=digits.target[ids])

    with pytest.raises(ConfigError, match=r"class 7 has no clean image .* add it to server\.npz"):
        Experiment(config(folder, "fb_nll")).prepare()


def test_methods_that_need_the_truth_are_refused(tmp_path):
    folder = write(tmp_path / "clients")

    with pytest.raises(ConfigError, match=r"needs the true tasks, .* add tasks\.yaml"):
        Experiment(config(folder, "optimum")).prepare()


def change(folder, name="site-3.npz", **arrays):
    with np.load(folder / name) as old:
        kept = {key: old[key] for key in old.files}
    np.savez(folder / name, **{k: v for k, v in {**kept, **arrays}.items() if v is not None})


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        (
            {"labels": None},
            r" must hold labels, got images; write it with np\.savez\(path, im",
        ),
        ({"images": None}, r" must hold images, got labels"),
        ({"labels": np.ones(5)}, r": labels must be integers \(N,\), got float64"),
        ({"labels": np.array([-1, 2])}, r": labels must be classes 0 or more, got -1"),
        ({"labels": np.array([0, 2])}, r" must hold one label per image, got 2 labels for"),
        (
            {"images": np.ones((3, 4))},
            r": images must be uint8 or float images \(N, H, W, C\)",
        ),
        ({"images": np.full((9, 8, 8), np.nan)}, r": images must be finite, got NaN or infinity"),
        ({"true_labels": np.array([1])}, r": true_labels must be integers .*, one per image"),
    ],
)
def test_a_bad_file_is_named(tmp_path, arrays, says):
    folder = write(tmp_path / "clients")
    change(folder, **arrays)

    with pytest.raises(DataError, match=rf"site-3\.npz{says}"):
        DriverData(config(folder, "single").data, 0)


def test_clients_that_do_not_fit_together_are_named(tmp_path):
    folder = write(tmp_path / "clients")
    count = len(np.load(folder / "site-3.npz")["labels"])
    change(folder, true_labels=np.zeros(count, np.int64))
    with pytest.raises(DataError, match=r"site-1\.npz must hold true_labels as other clients do"):
        DriverData(config(folder, "single").data, 0)
    change(folder, true_labels=None, images=np.zeros((count, 9, 9), np.uint8))
    with pytest.raises(DataError, match=r"site-3\.npz must hold images like .*site-1\.npz, uint8"):
        DriverData(config(folder, "single").data, 0)


def test_a_missing_or_double_test_set_is_refused(tmp_path):
    folder = write(tmp_path / "clients")
    held = "data.dataset={name: client_files, test_fraction: 0.2}"
    with pytest.raises(ConfigError, match=r"test_fraction is 0.2, but .*test\.npz is there"):
        DriverData(config(folder, "single", held).data, 0)
    (folder / "test.npz").unlink()
    with pytest.raises(DataError, match=r"must hold a test set, test\.npz or test/<class>/"):
        DriverData(config(folder, "single").data, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("low: [0]", "must be `<task>: {classes"),
        ("low: {classes: [0], clients: [site-9]}", "unknown client site-9"),
        ("low: {classes: [0], clients: [site-1, site-1]}", "client of two tasks site-1"),
        ("low: {classes: [0], clients: [site-1]}", "task of every client, got none for site-2"),
        ("low: {classes: [11], clients: [site-1]}", "must name classes of 0 to 9, got 11"),
        ("\udcff", "must be `<task>: {classes.* got: 'utf-8' codec"),
    ],
)
def test_wrong_tasks_are_named(tmp_path, text, says):
    folder = write(tmp_path / "clients")
    (folder / "tasks.yaml").write_text(text, errors="surrogateescape")

    with pytest.raises(DataError, match=rf"tasks\.yaml .*{says}"):
        DriverData(config(folder, "single").data, 0)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["data.partition=tasks"], "data.partition must be given with clients' own data"),
        (["data.dataset=digits"], "data.dataset must be client_files with .*, got digits"),
        (["data.noise=uniform"], "data.noise must be none .*, got uniform"),
        (["data.fraction=0.5"], r"data.fraction must be 1 .*, got 0\.5"),
        (["data.partition={kind: given, root: elsewhere}"], "must have the root of data"),
        (["data.dataset={name: client_files, test_fraction: 1}"], "test_fraction must be in"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, overrides, says):
    with pytest.raises(ConfigError, match=says):
        DriverData(config(tmp_path, "single", *overrides).data, 0)


def test_folders_without_clients_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"must hold <client>\.npz .* got neither"):
        DriverData(config(tmp_path, "single").data, 0)
    with pytest.raises(DataError, match="must be a folder with clients' data, got none"):
        DriverData(config(tmp_path / "gone", "single").data, 0)


def test_a_task_without_a_test_image_is_named(tmp_path):
    folder = write(tmp_path / "clients", noise=0)
    with np.load(folder / "test.npz") as old:
        images, labels = old["images"], old["labels"]
    kept = np.isin(labels, TASKS[0])
    np.savez(folder / "test.npz", images=images[kept], labels=labels[kept])

    with pytest.raises(DataError, match=r"gives client site-3 the classes .* no test image; add"):
        DriverData(config(folder, "single").data, 0)
