"""The printed numbers are complete and are those of the sheets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raysim.studies.reproduce.papers import TABLES, Published

SHEETS = Path(__file__).resolve().parents[3] / "shared" / "specs"
DATASETS = {"MNIST": "mnist", "Fashion-MNIST": "fashion_mnist", "CIFAR-10": "cifar10"}
DATASETS |= {"SVHN": "svhn"}
ROWS = {
    **{"Optimum Clustering": "optimum", "RCC-PFL": "rcc_pfl", "IFCA-PFL": "ifca_pfl"},
    **{"Single global model": "single", "Local": "cores2_local", "Global": "cores2_global"},
    **{"FedAvg": "fedavg", "FedProx": "fedprox", "RFL": "rfl", "MR": "mr", "FedCorr": "fedcorr"},
    **{"FedFixer": "fedfixer", "Oracle": "oracle", "Co-teaching": "co_teaching"},
    **{"Joint-opt": "joint_optimization", "SELFIE": "selfie", "DivideMix": "dividemix"},
    **{"Robust FL": "rfl", "FedRN k=1": "fedrn_k1", "FedRN k=2": "fedrn_k2"},
    **{"FedNova": "fednova", "FedAdam": "fedadam", "RHFL": "rhfl", "ClipFL": "clipfl"},
}
CLUSTERING = ("fb_nll_minus", "ifca_pfl", "single")
CORRECTION = (
    *("fb_nll", "fedcorr", "clipfl", "rhfl"),
    *("fedcorr_fb_nll", "clipfl_fb_nll", "rhfl_fb_nll"),
)
NUMBER = re.compile(r"\d+(?:\.\d+)?")
OUR_NOISES = ("class-indep", "class-dep", "uniform")
NOISES = ("sym0.4", "sym0.8", "asym0.4", "mixed0.4")
CLIPFL_PLACES = [
    f"{dataset}/{split}/{mu}"
    for split in ("iid", "dir0.5")
    for dataset in ("cifar10", "cifar100")
    for mu in ("mu0.5", "mu0.8")
]
TASKS = ("m2", "m3", "m5")


def sheet(name: str) -> str:
    path = SHEETS / name
    if not path.is_file():
        pytest.skip("the spec sheets are not beside this checkout")
    return path.read_text(encoding="utf-8")


def below(title: str, name: str = "errata_and_tables.md") -> list[list[str]]:
    """Cells of the lines of the table that follows a title."""
    part = sheet(name).split(title, 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def means(name: str) -> dict[str, float]:
    return {cell: number.mean for cell, number in TABLES[name].printed.items()}


def floats(text: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(text)]


def by_cell(dataset: str, columns: tuple[str, ...], row: str, text: str) -> dict[str, Published]:
    pairs = re.findall(r"([\d.]+)\+-([\d.]+)", text)
    return {
        f"{DATASETS[dataset]}/{column}/{row}": Published(float(mean), float(sd))
        for column, (mean, sd) in zip(columns, pairs, strict=True)
    }


# ---- RCC-PFL and FB-NLL ----------------------------------------------------------------------


@pytest.mark.parametrize("noise", OUR_NOISES)
@pytest.mark.parametrize(
    ("first", "title", "methods"),
    [
        (4, "Tables IV-VI with every std", CLUSTERING),
        (9, "Tables IX-XI with every std", CORRECTION),
    ],
)
def test_fb_nll_tables_are_those_of_the_sheet(noise, first, title, methods):
    expected = {}
    for found, dataset, *columns in below(title):
        if found == noise:
            for method, text in zip(methods, columns, strict=True):
                expected |= by_cell(dataset, TASKS, method, text)

    assert TABLES[f"fb-nll/table{first + OUR_NOISES.index(noise)}"].printed == expected
    assert len(expected) == 2 * 3 * len(methods)


@pytest.mark.parametrize(("number", "column"), [(2, 0), (3, 1)])
def test_rcc_pfl_tables_are_those_of_the_sheet(number, column):
    expected = {}
    for dataset, scheme, *columns in below("Tables II and III with every std"):
        expected |= by_cell(dataset, TASKS, ROWS[scheme], columns[column])

    assert TABLES[f"rcc-pfl/table{number}"].printed == expected
    assert len(expected) == 36


def test_clean_label_row_is_that_of_the_sheet():
    (line,) = [x for x in sheet("fbnll.md").splitlines() if x.startswith("Clean labels (ceiling)")]
    halves = line.split(";")

    expected = by_cell("CIFAR-10", TASKS, "fb_nll_minus", halves[0])
    expected |= by_cell("SVHN", TASKS, "fb_nll_minus", halves[1])

    assert TABLES["fb-nll/table8"].printed == expected


def test_similarities_are_those_of_the_paper():
    users = means("fb-nll/table2")

    inside = {pair: r for pair, r in users.items() if r > 0.9}
    assert inside == {"1-2": 0.97, "3-4": 0.97, "3-5": 0.98, "4-5": 0.98}
    assert len(users) == 10
    assert means("fb-nll/table7") == {"1-2": 0.62, "1-3": 0.39}


# ---- the other papers ------------------------------------------------------------------------


def test_fedfixer_table_2_has_every_mean_and_sd():
    columns = tuple(TABLES["fedfixer/table2"].columns)
    expected = {}
    for dataset, method, iid, other in below("Table 2 with every"):
        expected |= by_cell(dataset, columns, ROWS[method], f"{iid} {other}")

    assert TABLES["fedfixer/table2"].printed == expected
    assert len(expected) == 96


def test_fedfixer_tables_3_to_5_are_those_of_the_sheets():
    text = sheet("fedfixer.md")
    expected = {
        f"{DATASETS[dataset]}/{p}/{ROWS[method]}": number
        for dataset, method, numbers in below("Table 4 complete (p = .3 .5 .7 .9)")
        for p, number in zip(("p0.3", "p0.5", "p0.7", "p0.9"), floats(numbers), strict=True)
    }
    assert means("fedfixer/table4") == expected
    assert len(expected) == 48

    (line,) = [x for x in text.splitlines() if x.startswith("Clothing1M: 53.32")]
    assert sorted(means("fedfixer/table3").values()) == sorted(floats(line[11:]))
    assert means("fedfixer/table3")["clothing1m/noniid/fedfixer"] == 70.52

    found = list(means("fedfixer/table5").values())
    part = text.split("## Ablations", 1)[1].split("\n", 1)[1].split("\n##", 1)[0]
    assert sorted(found) == sorted(x for x in floats(part) if x > 30)
    assert means("fedfixer/table5")["cifar10/noniid/rho1_tau0.5/without_personal"] == 34.44


def test_fedrn_table_2_is_that_of_the_sheet():
    expected = {}
    for method, *columns in below("Mixed .0-.4", "fedrn.md"):
        for split, numbers in zip(("s2", "s5", "dir0.5"), columns, strict=True):
            for noise, number in zip(NOISES, floats(numbers), strict=True):
                expected[f"cifar10/{split}/{noise}/{ROWS[method]}"] = number

    assert means("fedrn/table2") == expected
    assert len(expected) == 108


def test_other_tables_of_fedrn_hold_the_numbers_of_the_sheets():
    text, more = sheet("fedrn.md"), sheet("errata_and_tables.md")
    part = text.split("CIFAR-100, S=20: ", 1)[1].split("WebVision", 1)[0]
    numbers = [x for x in floats(re.sub(r"k=\d", "", part)) if x > 2]
    assert sorted(means("fedrn/table3").values()) == sorted(numbers)
    assert means("fedrn/table3")["cifar100/s20/sym0.8/dividemix"] == 42.83
    assert means("fedrn/table4")["mini_webvision/s10/selfie top5"] == 48.76
    assert means("fedrn/table4")["mini_webvision/s10/fedrn_k2 last"] == 22.76
    tables = means("fedrn/table5")
    for alpha, without, tuned in (
        ("0.2", "63.77/57.24", "67.45/62.69"),
        ("1.0", "56.06/44.87", ""),
    ):
        assert without in f"{text}{more}"
        assert tuned in more
        rows = [f"cifar10/s2/{noise}/fedrn_alpha{alpha}_untuned" for noise in NOISES[:2]]
        assert [tables[row] for row in rows] == floats(without)
    ks = [means("fedrn/table6")[f"cifar10/s2/sym0.4/fedrn_k{k}"] for k in range(1, 6)]
    assert ",".join(f"{x:.2f}" for x in ks) in text
    blocks = "80.31/76.01, 80.36/76.16"
    assert blocks in more
    both = [
        means("fedrn/table6")[f"cifar10/dir0.5/{noise}/fedrn_k{k}"]
        for k in (3, 4)
        for noise in NOISES[:2]
    ]
    assert both == floats(blocks)
    last = [means("fedrn/table7")[f"cifar100/s20/{noise}/fedrn_k5"] for noise in NOISES]
    assert f"k=5 {' '.join(f'{x:.2f}' for x in last)}" in more
    assert means("fedrn/table9")["cifar10/dir0.5/sym0.8/fedrn_random"] == 75.11
    alphas = [
        means("fedrn/table10")[f"cifar10/{split}/{noise}/fedrn_alpha0.4"]
        for split in ("s2", "dir0.5")
        for noise in NOISES[:2]
    ]
    assert "0.4 {:.2f}/{:.2f} {:.2f}/{:.2f}".format(*alphas) in more


def test_tables_of_one_paper_that_repeat_a_number_agree():
    two, six, nine = means("fedrn/table2"), means("fedrn/table6"), means("fedrn/table9")

    assert {cell: six[cell] for cell in six.keys() & two.keys()}.items() <= two.items()
    assert {cell: nine[cell] for cell in nine.keys() & two.keys()}.items() <= two.items()
    assert len(six.keys() & two.keys()) == 8
    first, fourth = means("clipfl/table1"), means("clipfl/table4")
    assert {cell: fourth[cell] for cell in fourth.keys() & first.keys()}.items() <= first.items()


@pytest.mark.parametrize(
    ("name", "start"), [("clipfl/table1", "Table 1 (pre"), ("clipfl/table2", "Table 2, noisy-cl")]
)
def test_clipfl_tables_1_and_2_are_those_of_the_sheet(name, start):
    part = sheet("clipfl.md").split(start, 1)[1].split("\nTable", 1)[0]
    expected = {}
    for method, numbers in re.findall(r"(Fed\w+) ([\d.> ,|-]+)", part):
        found = floats(numbers.replace("->", " "))
        pruned = f"{ROWS[method]}+clipfl"
        rows = [ROWS[method], pruned] if "->" in numbers else [pruned]
        for i, place in enumerate(CLIPFL_PLACES):
            for j, row in enumerate(rows):
                expected[f"{place}/{row}"] = found[len(rows) * i + j]

    assert means(name) == expected
    assert len(expected) == 8 * len(TABLES[name].rows)


def test_clipfl_tables_3_and_4_are_those_of_the_sheets():
    part = sheet("clipfl.md").split("Table 3 (random init)", 1)[1].split("\nCommun", 1)[0]
    expected = {
        f"{place}/{ROWS[method]}": number
        for method, numbers in re.findall(r"(FedAvg|FedCorr|RHFL|ClipFL) ([\d. |]+)", part)
        for place, number in zip(CLIPFL_PLACES, floats(numbers), strict=True)
    }
    assert means("clipfl/table3") == expected
    line = sheet("errata_and_tables.md").split("* Table 4, FedAvg+ClipFL", 1)[1]
    numbers = floats(line.split("Table 1: ", 1)[1].split("(", 1)[0])
    found = means("clipfl/table4")
    assert [found[f"{place}/fedavg+clipfl_synthetic"] for place in CLIPFL_PLACES] == numbers


# ---- complete -------------------------------------------------------------------------------

COMPLETE = [n for n, t in TABLES.items() if t.kind == "accuracy" and "figure" not in n]


@pytest.mark.parametrize("name", COMPLETE)
def test_every_cell_of_every_table_has_a_printed_number(name):
    table = TABLES[name]

    cells = {
        f"{cell.address} {table.value_name(value)}".strip()
        for cell in table.cells
        for value in table.values
        if not (name == "clipfl/table3" and cell.row == "fedlsr")  # it diverged
    }
    assert table.printed.keys() == cells


def test_every_table_and_figure_of_the_issue_is_there():
    numbers = [2, 4, 5, 6, 7, 8, 9, 10, 11]

    assert set(TABLES) == {
        *(f"fb-nll/table{n}" for n in numbers),
        *("rcc-pfl/table2", "rcc-pfl/table3", "rcc-pfl/figure3", "fb-nll/figure5"),
        *(f"fedfixer/table{n}" for n in range(2, 6)),
        *(f"fedrn/table{n}" for n in range(2, 11)),
        *(f"clipfl/table{n}" for n in range(1, 5)),
        *(f"clipfl/figure{n}" for n in range(9, 12)),
    }
