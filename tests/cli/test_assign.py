"""``raysim assign``: late clients join the group that full clustering gives them."""

import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

from raysim.cli.main import cli
from raysim.config import load_config
from raysim.core.similarity import relevance
from raysim.core.spectra import spectrum, truncate
from raysim.data.features.feature_files import find_files
from raysim.data.world import DriverData
from raysim.errors import DataError
from raysim.experiment import Experiment
from raysim.runs.folder import RunFolder
from raysim.standalone.assignment import assign, open_grouped
from raysim.standalone.feature_clusters import cluster_files, save_clusters

LATE = (1, 6, 11)
"""One client of every task arrives late."""


@pytest.fixture(scope="module")
def features():
    """HoG rows of the twelve clients of the quickstart, by client."""
    data = DriverData(load_config("quickstart").data, 0)
    world = data.spec().open()
    return [world.features("grouping", ids) for ids in data.split.clients]


@pytest.fixture(scope="module")
def clustered(features, tmp_path_factory):
    """A folder of `raysim cluster` without the late clients, whose files lie beside it."""
    base = tmp_path_factory.mktemp("late")
    for kind in ("known", "late"):
        (base / kind).mkdir()
    for k, rows in enumerate(features):
        np.save(base / ("late" if k in LATE else "known") / f"{k}.npy", rows)
    found = cluster_files(find_files([str(base / "known")]), 3)
    save_clusters(found, base / "out", {})
    return base


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short run of the quickstart."""
    where = tmp_path_factory.mktemp("run") / "run"
    overrides = ["method=fb_nll_minus", "train.rounds=1", "runtime.kind=local", f"output={where}"]
    return Experiment(load_config("quickstart", overrides)).run()


def run(*arguments):
    found = CliRunner().invoke(cli, ["assign", *map(str, arguments)])
    if found.exception:
        raise found.exception
    return found.output


def test_late_clients_get_the_group_of_full_clustering(clustered, features, tmp_path):
    files = [clustered / "late" / f"{k}.npy" for k in LATE]

    said = [json.loads(line) for line in run(clustered / "out", *files, "--json").splitlines()]

    for k, rows in enumerate(features):
        np.save(tmp_path / f"{k}.npy", rows)
    everyone = cluster_files(find_files([str(tmp_path)]), 3)
    assert [row["group"] for row in said] == [int(everyone.groups[k]) for k in LATE]
    assert all(row["margin"] > 0.2 and row["fits"] for row in said)


def test_the_mean_answer_decides(clustered, features):
    grouped = open_grouped(str(clustered / "out"))
    vectors = spectrum(features[6]).vectors[:, : grouped.rank]

    (found,) = assign(grouped, [vectors])

    known = [f for k, f in enumerate(features) if k not in LATE]
    answer = [float(relevance(truncate(spectrum(f), grouped.rank), vectors)) for f in known]
    means = [np.mean(np.array(answer)[grouped.groups == g]) for g in range(3)]
    np.testing.assert_allclose(list(found.relevance.values()), means, atol=1e-4)
    best, second = sorted(means)[::-1][:2]
    assert found.margin == pytest.approx(best - second, abs=1e-4)
    assert found.group == int(np.argmax(means))


def test_vectors_alone_say_the_same_as_features(clustered, features, tmp_path):
    np.save(tmp_path / "v.npy", spectrum(features[1]).vectors[:, :20].astype(np.float32))

    by_vectors = json.loads(run(clustered / "out", tmp_path / "v.npy", "--vectors", "--json"))
    by_features = json.loads(run(clustered / "out", clustered / "late" / "1.npy", "--json"))

    assert by_vectors["relevance"] == pytest.approx(by_features["relevance"], abs=1e-5)


def test_a_client_of_another_kind_fits_nowhere(clustered, tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "odd.npy", rng.uniform(-1, 1, (200, 144)))

    assert "it resembles no group well" in run(clustered / "out", tmp_path / "odd.npy")


def test_a_run_directory_answers_too(finished, features, tmp_path):
    files = []
    for k in (0, 5, 10):
        files.append(tmp_path / f"{k}.npy")
        np.save(files[-1], features[k][::2])

    said = [json.loads(line) for line in run(finished.run_dir, *files, "--json").splitlines()]

    assert [row["group"] for row in said] == [finished.summary["groups"][k] for k in (0, 5, 10)]
    for row in said:
        assert row["model"] == f"{finished.run_dir}/models/group-{row['group']}.safetensors"


def test_groups_of_different_sizes_of_vectors_are_answered_together(clustered, features):
    grouped = open_grouped(str(clustered / "out"))
    own = spectrum(features[6]).vectors

    both = assign(grouped, [own[:, :3], own[:, :20], own[:, :3]])

    assert [one.rank for one in both] == [3, grouped.rank, 3]
    assert both[0].relevance == both[2].relevance
    (alone,) = assign(grouped, [own[:, :20]])
    assert both[1].relevance == alone.relevance


def test_what_does_not_fit_is_refused(clustered, finished, tmp_path):
    np.save(tmp_path / "narrow.npy", np.ones((5, 7)))
    np.save(tmp_path / "skew.npy", np.ones((144, 2)))
    with pytest.raises(DataError, match=r"narrow\.npy must hold features \(N, D\) with D = 144"):
        run(clustered / "out", tmp_path / "narrow.npy")
    with pytest.raises(DataError, match=r"narrow\.npy must hold eigenvectors \(D, Q\) with D"):
        run(finished.run_dir, tmp_path / "narrow.npy", "--vectors")
    with pytest.raises(DataError, match=r"skew\.npy must hold orthonormal columns"):
        run(clustered / "out", tmp_path / "skew.npy", "--vectors")
    with pytest.raises(DataError, match="no feature file at"):
        run(clustered / "out", tmp_path / "gone.npy")
    with pytest.raises(DataError, match="must be a run directory or a folder of `raysim cluster`"):
        run(tmp_path, tmp_path / "narrow.npy")


def test_a_run_without_similarity_groups_is_refused(tmp_path, clustered):
    overrides = ["method=single", "train.rounds=1", "runtime.kind=local", f"output={tmp_path}/run"]
    result = Experiment(load_config("quickstart", overrides)).run()

    with pytest.raises(DataError, match="must be a run that groups clients by similarity"):
        run(result.run_dir, clustered / "late" / "1.npy")


def test_features_that_are_gone_are_named(features, tmp_path):
    for k in range(4):
        np.save(tmp_path / f"{k}.npy", features[k])
    save_clusters(cluster_files(find_files([str(tmp_path)]), 1), tmp_path / "out", {})
    (tmp_path / "2.npy").unlink()

    with pytest.raises(DataError, match=r"made from .*2\.npy, which is not there"):
        run(tmp_path / "out", tmp_path / "1.npy")


def test_a_run_that_is_being_written_answers_and_a_damaged_one_is_named(
    finished, features, tmp_path
):
    copy = tmp_path / "copy"
    shutil.copytree(finished.run_dir, copy)
    np.save(tmp_path / "new.npy", features[0])
    lines = (copy / "rounds.jsonl").read_text()

    (copy / "rounds.jsonl").write_text(lines + '{"stage": "tr')
    assert "group 0" in run(copy, tmp_path / "new.npy")
    (copy / "rounds.jsonl").write_text("no json\n" + lines)
    with pytest.raises(DataError, match=r"rounds\.jsonl is damaged"):
        run(copy, tmp_path / "new.npy")
    (copy / "rounds.jsonl").write_text(lines)
    (copy / "artifacts" / "similarity.npy").write_bytes(b"no array")
    with pytest.raises(DataError, match=r"similarity\.npy is damaged"):
        run(copy, tmp_path / "new.npy")


def test_a_run_of_other_data_is_refused(finished, features, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished.run_dir, copy)
    np.save(tmp_path / "new.npy", features[0])
    folder = RunFolder(copy)
    facts = folder.read("environment.json")
    facts["data"]["digest"] = "0" * 64
    folder.write("environment.json", facts)

    with pytest.raises(DataError, match="the run used 000000000000"):
        run(copy, tmp_path / "new.npy")
