"""Names, cells, seeds and folders that are wrong: one sentence, nothing started."""

from __future__ import annotations

import subprocess
import sys

import pytest

from raysim.data.datasets import standard
from raysim.errors import ConfigError, DataError
from raysim.studies.reproduce.papers import TABLES, find_table, parse_seeds, select_cells


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["fb-nll/tabel9"], ["no table or figure 'fb-nll/tabel9'", "did you mean fb-nll/table9?"]),
        ([], ["needs the NAME", "got none", "--list"]),
        (["fb-nll/table9", "--cells", "mnist/*"], ["'mnist/*'", "cifar10/m2/fb_nll, "]),
        (["rcc-pfl/table2", "--seeds", "many"], ["--seeds", "got 'many'", "--seeds 5 for 0 to 4"]),
        (["rcc-pfl/table2", "--seeds", "4-1"], ["--seeds", "got '4-1'"]),
        (["rcc-pfl/table2", "--seeds", "0"], ["--seeds", "got '0'"]),
        (["rcc-pfl/table2", "--seeds", "0,2"], ["--seeds", "got '0,2'"]),
        (["rcc-pfl/table2", "--seeds", "99999999999"], ["--seeds", "at most 1000"]),
        (["rcc-pfl/table2", "--resume", "--force"], ["contradict each other"]),
        (["--summary", "nowhere"], ["nowhere holds no results", "--out"]),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(reproduce, tmp_path, arguments, parts):
    said = reproduce(*arguments)

    assert said.code == 2
    assert [part for part in parts if part not in said.err] == []
    assert said.err.startswith("raysim: ")
    assert not (tmp_path / "out").exists()


def test_an_unknown_scale_and_no_jobs_are_refused_by_name(reproduce):
    assert "--scale" in reproduce("rcc-pfl/table2", "--scale", "tiny").err
    assert "--jobs" in reproduce("rcc-pfl/table2", "--jobs", "0").err


def test_missing_data_is_named_with_the_command_that_fetches_it(reproduce, tmp_path, monkeypatch):
    def offline(*arguments: object) -> None:
        raise DataError("no network")

    monkeypatch.setattr(standard, "download", offline)
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "empty"))

    said = reproduce("rcc-pfl/table2", "--cells", "mnist/m3/single", "--seeds", "1")

    assert said.code == 2
    assert "rcc-pfl/table2 needs dataset mnist" in said.err
    assert "raysim data fetch mnist" in said.err
    assert not (tmp_path / "out").exists()


def test_table_vii_without_its_data_names_the_set_that_can_be_fetched(
    reproduce, tmp_path, monkeypatch
):
    def offline(name: str, *arguments: object) -> None:
        raise DataError("no network")

    monkeypatch.setattr(standard, "download", offline)
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "empty"))

    assert "raysim data fetch cifar10" in reproduce("fb-nll/table7", "--seeds", "1").err


@pytest.mark.parametrize(
    ("text", "scale", "seeds"),
    [
        ("3", "full", (0, 1, 2)),
        ("2-4", "full", (2, 3, 4)),
        ("0-1,7-7", "small", (0, 1, 7)),
        ("0-2,1-3", "full", (0, 1, 2, 3)),
        (None, "full", (0, 1, 2, 3, 4)),
        (None, "small", (0,)),
    ],
)
def test_seeds_are_a_count_or_ranges(text, scale, seeds):
    assert parse_seeds(text, scale, 5) == seeds


def test_patterns_choose_cells_in_the_order_of_the_table():
    table = find_table("rcc-pfl/table2")

    found = select_cells(table, "*/rcc_pfl,mnist/m3/*")

    addresses = [cell.address for cell in found]
    assert len(addresses) == 9 + 3
    assert addresses[:2] == ["mnist/m2/rcc_pfl", "mnist/m3/optimum"]
    assert select_cells(table, None) == table.cells


def test_a_pattern_is_a_whole_address_not_a_part_of_one():
    with pytest.raises(ConfigError, match="matches no cell"):
        select_cells(find_table("rcc-pfl/table2"), "rcc_pfl")


def test_the_list_names_every_table_with_runs_and_cost(reproduce):
    said, plain = reproduce("--list"), reproduce("--list", "--json")

    rows = {row["name"]: row for row in plain.json["tables"]}
    assert said.code == plain.code == 0
    assert rows.keys() == TABLES.keys()
    assert all(name in said.out for name in rows)
    assert rows["rcc-pfl/table2"]["runs"] == {"full": 180, "small": 36}
    assert rows["fb-nll/table9"]["core_hours"]["full"] > 1000  # a ResNet-18 without a GPU


def test_listing_loads_no_heavy_package():
    code = (
        "import sys\n"
        "from raysim.cli.main import main\n"
        "try:\n    main(['reproduce', '--list'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = ('torch', 'ray', 'sklearn', 'scipy', 'skimage', 'matplotlib')\n"
        "print(sorted(name for name in heavy if name in sys.modules))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)

    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
