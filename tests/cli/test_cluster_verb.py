"""``raysim cluster``: what it finds and writes from feature files, and what it refuses."""

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

from raysim.cli.main import cli
from raysim.core.clustering import merge_tree
from raysim.core.similarity import similarity_matrix
from raysim.core.spectra import spectrum
from raysim.data.features.feature_files import find_files
from raysim.errors import ConfigError, DataError, EnvironmentNotFit, OutputError
from raysim.seeding import stream
from raysim.standalone.feature_clusters import cluster_files

D = 10


def rows_of(task, samples, *ids):
    """Features whose strong directions depend on the task."""
    spread = np.roll([4, 3, 2, 1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2], 4 * task)
    return stream(0, "test.cluster", task, *ids).normal(0.0, spread, (samples, D))


@pytest.fixture
def folder(tmp_path):
    """Ten clients in two tasks, as client0.npy ... client9.npy."""
    made = tmp_path / "features"
    made.mkdir()
    for k in range(10):
        np.save(made / f"client{k}.npy", rows_of(k % 2, 80 + k, k).astype(np.float32))
    return made


def run(*arguments, fails=False):
    found = CliRunner().invoke(cli, ["cluster", *map(str, arguments)])
    if not fails and found.exception:
        raise found.exception
    return found


def test_everything_is_written_and_right(folder, tmp_path):
    out = tmp_path / "out"

    said = run(folder, "--clusters", "auto", "--rank", 3, "--out", out, "--format", "none").output

    features = [np.load(folder / f"client{k}.npy") for k in range(10)]
    expected = similarity_matrix([spectrum(f) for f in features], rank=3)
    np.testing.assert_allclose(np.load(out / "similarity.npy"), expected, atol=1e-4)
    result = json.loads((out / "result.json").read_text())
    assert (result["count"], result["rank"], result["dimension"]) == (2, 3, D)
    assert result["auto"]["confidence"] == 1.0
    heights = merge_tree(expected)[:, 2]
    np.testing.assert_allclose(result["heights"], heights, atol=1e-4)
    rows = list(csv.DictReader((out / "assignment.csv").open()))
    assert [row["client"] for row in rows] == [f"client{k}" for k in range(10)]
    assert [int(row["group"]) for row in rows] == [k % 2 for k in range(10)]
    assert [c["samples"] for c in result["clients"]] == [80 + k for k in range(10)]
    assert "2 groups" in said
    assert "confidence 1.00: 40 of 40" in said
    assert sorted(p.name for p in out.iterdir()) == [
        "assignment.csv",
        "result.json",
        "similarity.npy",
    ]


def test_silhouettes_are_those_of_scikit_learn(folder):
    from sklearn.metrics import silhouette_samples

    found = cluster_files(find_files([str(folder)]), 2)

    distances = 1.0 - found.similarity.astype(np.float64)
    np.fill_diagonal(distances, 0.0)
    expected = silhouette_samples(distances, found.groups, metric="precomputed")
    np.testing.assert_allclose(found.silhouettes(), expected, atol=1e-6)


def test_plots_show_the_groups(folder, tmp_path):
    from PIL import Image

    run(folder, "--clusters", 2, "--out", tmp_path / "out", "--format", "png,pdf,html")

    for name in ("similarity", "dendrogram"):
        pixels = np.asarray(Image.open(tmp_path / "out" / f"{name}.png").convert("RGB"))
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20, "the picture is blank"
        assert (tmp_path / "out" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    page = (tmp_path / "out" / "clusters.html").read_text()
    assert all(f"client{k}" in page for k in range(10))


def test_clients_of_one_task_have_no_groups(tmp_path):
    for k in range(8):
        np.save(tmp_path / f"{k}.npy", rows_of(0, 60, k))

    said = run(tmp_path, "--out", tmp_path / "out", "--format", "none").output

    assert "no groups: the best cut" in said
    assert json.loads((tmp_path / "out" / "result.json").read_text())["count"] == 1


def test_a_folder_a_pattern_and_one_npz_are_the_same_clients(folder, tmp_path):
    arrays = {f"client{k}": np.load(folder / f"client{k}.npy") for k in range(10)}
    np.savez(tmp_path / "all.npz", **arrays)

    ways = [[str(folder)], [f"{folder}/client*.npy"], [str(tmp_path / "all.npz")]]
    found = [cluster_files(find_files(way), 2) for way in ways]

    assert all([f.name for f in c.files] == [f"client{k}" for k in range(10)] for c in found)
    assert all((c.similarity == found[0].similarity).all() for c in found)


def test_ten_comes_after_nine(tmp_path):
    for k in (10, 9, 1):
        np.save(tmp_path / f"c{k}.npy", rows_of(0, 20, k))

    assert [f.name for f in find_files([str(tmp_path)])] == ["c1", "c9", "c10"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "uint8"])
def test_every_kind_of_number_gives_the_groups(tmp_path, dtype):
    for k in range(6):
        np.save(tmp_path / f"{k}.npy", np.abs(10 * rows_of(k % 2, 60, k)).astype(dtype))

    found = cluster_files(find_files([str(tmp_path)]), 2)

    assert found.groups.tolist() == [0, 1] * 3


def test_many_clients_in_little_memory(tmp_path, monkeypatch):
    """Spectra beyond the limit are computed twice and give the same R."""
    for k in range(30):
        np.save(tmp_path / f"{k}.npy", rows_of(k % 3, 40, k))
    files = find_files([str(tmp_path)])
    kept = cluster_files(files, 3)

    monkeypatch.setattr("raysim.standalone.comparison.KEPT_BYTES", 1)
    again = cluster_files(files, 3)

    assert (again.similarity == kept.similarity).all()
    assert again.groups.tolist() == [k % 3 for k in range(30)]


def test_results_are_replaced_only_with_force(folder, tmp_path):
    out = tmp_path / "out"
    options = ("--clusters", 2, "--out", out, "--format", "none")
    run(folder, *options)

    with pytest.raises(OutputError, match="holds clusters; choose another folder or add --force"):
        run(folder, *options)
    run(folder, *options, "--force")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "note.txt").write_text("keep")
    with pytest.raises(OutputError, match="holds other files"):
        run(folder, "--out", tmp_path / "mine", "--force")


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.full((9, D), np.nan), r"must be finite, got NaN or infinity in row 0"),
        (np.full((9, D), np.inf), r"must be finite"),
        (np.ones(9), r"must be a matrix \(samples, features\), got shape \(9,\)"),
        (np.ones((9, 2, 5)), r"must be a matrix"),
        (np.empty((0, D)), r"must hold at least one sample and feature, got shape \(0, 10\)"),
        (np.array([["a"]]), r"must hold real numbers, got <U1"),
        (np.ones((9, D), complex), r"must hold real numbers, got complex128"),
        (np.ones((9, 7)), r"must have 10 features like .*client0\.npy, got 7"),
    ],
)
def test_a_bad_file_is_named(folder, tmp_path, array, says):
    np.save(folder / "client5.npy", array)

    with pytest.raises(DataError, match=rf"client5\.npy {says}"):
        run(folder, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_that_are_no_arrays_are_named(folder, tmp_path):
    (folder / "client5.npy").write_bytes(b"")
    with pytest.raises(DataError, match=r"client5\.npy must be an array of numbers"):
        run(folder)
    (folder / "client5.npy").unlink()
    (folder / "client5.npz").write_bytes(b"not a zip")
    with pytest.raises(DataError, match=r"client5\.npz must be an npz archive"):
        run(folder)
    np.savez(folder / "client5.npz", a=np.ones((3, D)), b=np.ones((3, D)))
    with pytest.raises(DataError, match=r"client5\.npz must hold one array, or one called f"):
        run(folder)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--clusters", "many"], "--clusters must be a number or auto, got 'many'"),
        (["--clusters", "11"], r"between 1 and the number of clients \(10\), got 11"),
        (["--clusters", "0"], r"between 1 and the number of clients \(10\), got 0"),
        (["--rank", "most"], "--rank must be a number, auto, threshold or full, got 'most'"),
        (["--rank", "0"], "--rank must be at least 1, got 0"),
        (["--threshold", "2"], r"--threshold must be in \[0, 1\], got 2"),
        (["--format", "gif"], "--format must be some of png, pdf, html or none, got 'gif'"),
    ],
)
def test_wrong_options_are_refused(folder, tmp_path, arguments, says):
    with pytest.raises(ConfigError, match=says):
        run(folder, "--out", tmp_path / "out", *arguments)


def test_too_few_clients_are_refused(folder, tmp_path):
    with pytest.raises(DataError, match=r"at least two clients are needed, got 1"):
        run(folder / "client0.npy")
    with pytest.raises(ConfigError, match="auto needs at least 4 clients, got 3"):
        run(*(folder / f"client{k}.npy" for k in range(3)))
    with pytest.raises(DataError, match="no feature file at"):
        run(tmp_path / "nowhere*.npy")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="must hold feature files, got none"):
        run(tmp_path / "empty")


def test_parquet_is_read_where_its_packages_are(tmp_path):
    try:
        import pandas as pd
        import pyarrow  # noqa: F401
    except ImportError:
        for name in "ab":
            (tmp_path / f"{name}.parquet").write_bytes(b"PAR1")
        with pytest.raises(EnvironmentNotFit, match="parquet files need pandas and pyarrow"):
            run(tmp_path, "--clusters", 1, "--format", "none")
        return
    for k in range(4):
        pd.DataFrame(rows_of(k % 2, 60, k)).rename(columns=str).to_parquet(
            tmp_path / f"{k}.parquet"
        )

    assert cluster_files(find_files([str(tmp_path)]), 2).groups.tolist() == [0, 1, 0, 1]


def test_old_pictures_do_not_stand_beside_new_groups(folder, tmp_path):
    out = tmp_path / "out"
    run(folder, "--clusters", 3, "--out", out, "--format", "png")
    assert (out / "similarity.png").is_file()

    run(folder, "--clusters", 2, "--out", out, "--format", "none", "--force")

    assert not list(out.glob("*.png"))
    assert json.loads((out / "result.json").read_text())["count"] == 2


def test_a_rank_that_is_not_there_is_capped_with_the_reason(folder, tmp_path):
    many = run(folder, "--clusters", 2, "--rank", 99, "--out", tmp_path / "a", "--format", "none")
    np.save(folder / "client3.npy", rows_of(1, 4, 3).astype(np.float32))
    few = run(folder, "--clusters", 2, "--rank", 99, "--out", tmp_path / "b", "--format", "none")

    assert f"rank 99 is capped at {D}: there are no more features" in many.output
    assert "rank 99 is capped at 4: " in few.output
    assert "client3.npy has no more samples" in few.output
