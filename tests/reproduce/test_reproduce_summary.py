"""RESULTS.md: numbers, seeds, machine, reduced settings, and what was not run."""

from __future__ import annotations

import pytest

from raysim.studies.reproduce.papers import PAPERS, find_table, select_cells
from raysim.studies.reproduce.results import FORMAT, write_result
from raysim.studies.reproduce.summary import NOTES, paired_differences, write_summary

MACHINE = {"cpus": 2, "processor": "a processor", "system": "Linux x86_64"}


def put(out, name, cell, accuracy, *, seed=0, scale="small", **more):
    """Write a result as a run would."""
    result = {
        "format": FORMAT,
        "name": name,
        "cell": cell,
        "seed": seed,
        "scale": scale,
        "reduced": {"train.rounds": {"paper": 80, "here": 30}} if scale == "small" else {},
        "deviations": [],
        "machine": MACHINE,
        "raysim": "0.1.0",
        "accuracy_percent": accuracy,
        "ari": 1.0,
        "noise": {"before": 0.24, "after": 0.06},
        "bytes": {"up": 2_000_000, "down": 3_000_000},
        "rounds": 30,
        "seconds": {"total": 120.0},
        **more,
    }
    write_result(out / name / scale / cell / f"seed{seed}.json", result)


@pytest.fixture
def results(tmp_path):
    """Two methods at M=3, two seeds of one, clean labels beside them."""
    put(tmp_path, "fb-nll/table9", "cifar10/m3/fb_nll", 80.0)
    put(tmp_path, "fb-nll/table9", "cifar10/m3/fb_nll", 70.0, seed=1)
    put(tmp_path, "fb-nll/table4", "cifar10/m3/fb_nll_minus", 74.0)
    put(tmp_path, "fb-nll/table4", "cifar10/m3/fb_nll_minus", 71.0, seed=1)
    put(tmp_path, "fb-nll/table8", "cifar10/m3/fb_nll_minus", 81.25)
    return tmp_path


def line_of(text, start):
    (line,) = [x for x in text.splitlines() if x.startswith(start)]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_line_has_measured_seeds_published_and_difference(results):
    line = line_of(write_summary(results), "| cifar10/m3/fb_nll |")

    # mean 75, sample sd 10 / sqrt(2); printed 85.13 ± 0.20
    assert line[:5] == ["cifar10/m3/fb_nll", "75.00 ± 7.07", "0-1", "85.13 ± 0.2", "-10.13"]
    assert "1.000" in line
    assert "24.0 → 6.0" in line
    assert "2.0 / 3.0" in line
    assert line[-1] == "81.25"  # clean labels


def test_machine_versions_and_hours_are_stated(results):
    text = write_summary(results)

    assert "a processor, 2 CPUs, Linux x86_64" in text
    assert "- runs: 5, 0.2 hours of wall time" in text
    assert "raysim 0.1.0" in text


def test_reduced_settings_are_stated_and_full_ones_are_not(results):
    put(results, "rcc-pfl/table2", "mnist/m3/single", 87.0, scale="full")
    text = write_summary(results)

    small = text.split("## fb-nll/table9, scale small")[1].split("\n## ")[0]
    full = text.split("## rcc-pfl/table2, scale full")[1].split("\n## ")[0]
    assert "**Not the paper's setting.**" in small
    assert "- train.rounds: 30 (paper 80), cifar10" in small
    assert "Not the paper's" not in full


def test_paired_differences_are_listed_with_their_mean(results):
    assert paired_differences(PAPERS["fb-nll"], results, "small") == [
        ("class_independent", "cifar10/m3", 0, 6.0),
        ("class_independent", "cifar10/m3", 1, -1.0),
    ]
    assert "Mean of 2 paired differences: +2.50 points; 1 below zero." in write_summary(results)


def test_cells_without_result_are_listed(results):
    text = write_summary(results).split("## Not run")[1]

    assert "- rcc-pfl/table2, not at all: all 36 cells" in text
    assert "- fb-nll/table9, only at scale small: `cifar10/m3/fb_nll`\n" in text
    missing = next(x for x in text.splitlines() if x.startswith("- fb-nll/table9, not at all"))
    patterns = missing.partition(": ")[2].replace("`", "")
    assert patterns.startswith("cifar10/m2/*, cifar10/m3/fedcorr, ")
    assert patterns.endswith(", cifar10/m5/*, svhn/*")
    table = find_table("fb-nll/table9")
    chosen = {cell.address for cell in select_cells(table, patterns.replace(" ", ""))}
    assert chosen == {cell.address for cell in table.cells} - {"cifar10/m3/fb_nll"}


def test_notes_by_hand_are_kept(results):
    (results / NOTES).write_text("Why seed 1 is lower.\n", encoding="utf-8")

    assert "Why seed 1 is lower." in write_summary(results)


def test_a_reused_training_is_marked(results):
    place = ("rcc-pfl/table2", "mnist/m3/rcc_pfl", 96.0)
    put(results, *place, scale="full", reused_from={"cell": "mnist/m3/optimum"})

    line = line_of(write_summary(results), "| mnist/m3/rcc_pfl |")

    assert line[-1] == "2.0; optimum's training"


def test_figures_and_similarities_have_their_own_rows(results):
    series = {"test_loss_by_task": [[2.0, 2.0, 2.0], [1.0, 0.5, 0.25]]}
    place = ("rcc-pfl/figure3", "cifar10/m3/optimum", 70.0)
    put(results, *place, scale="full", series=series)
    values = {"1-2": 0.63, "1-3": 0.38}
    put(results, "fb-nll/table7", "similarity", 0.0, scale="full", values=values)

    text = write_summary(results)

    assert line_of(text, "| cifar10/m3/optimum task 3 |")[1] == "0.250"
    assert line_of(text, "| 1-2 |") == ["1-2", "0.630", "0", "0.62", "+0.010"]


def test_the_command_writes_the_file(results, reproduce, tmp_path):
    said = reproduce("--summary", results, "--write", tmp_path / "RESULTS.md")

    assert said.code == 0, said.err
    assert (tmp_path / "RESULTS.md").read_text(encoding="utf-8") == write_summary(results)


def test_judged_labels_and_clients_are_shown_where_they_were_recorded(results):
    place = ("fedrn/table2", "cifar10/s2/sym0.8/fedrn_k2", 50.0)
    kept = {"precision": 0.81, "recall": 0.9, "f_score": 0.85}
    put(results, *place, selection_last10=kept, noisy_clients=None)
    found = {"found": [1], "precision": 0.85, "recall": 0.5}
    clip = ("clipfl/table1", "cifar10/iid/mu0.8/fedavg+clipfl", 50.0)
    put(results, *clip, accuracy_last10=0.48, noisy_clients=found, deviations=["a network"])

    text = write_summary(results)

    part = text.split("## fedrn/table2, scale small")[1].split("\n## ")[0]
    assert "labels kept: precision / recall %" in part
    assert "noisy clients" not in part
    assert line_of(part, "| cifar10/s2/sym0.8/fedrn_k2 |")[-1] == "81.0 / 90.0"
    part = text.split("## clipfl/table1, scale small")[1].split("\n## ")[0]
    line = line_of(part, "| cifar10/iid/mu0.8/fedavg+clipfl |")
    assert line[1:5] == ["48.00", "0", "59.14", "-11.14"]  # the mean of the last ten rounds
    assert line[-1] == "85.0 / 50.0"
    assert "Compared: mean test accuracy of the last 10 rounds." in part
    assert "- a network" in part
