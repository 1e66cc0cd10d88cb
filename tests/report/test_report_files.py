"""What `raysim report` writes: pictures that show something, documents, nothing else touched."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from raysim.cli.report import command
from raysim.errors import ConfigError, EnvironmentNotFit, OutputError
from raysim.report.build import make_report
from raysim.report.documents import write_latex, write_markdown
from raysim.report.plots import draw
from raysim.report.report import Cell, Report, Table
from raysim.report.writer import plan_output, write_report


def check_picture(png: bytes) -> None:
    """A white page with something on it: more than a few colours, neither empty nor full."""
    image = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    ink = (image < 250).any(axis=2).mean()
    colours = image.astype(np.uint32) @ np.array([1, 256, 65536], dtype=np.uint32)
    assert len(np.unique(colours)) > 8
    assert 0.005 < ink < 0.95


@pytest.fixture(scope="module")
def written(real_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a report as Markdown with its pictures."""
    folder = tmp_path_factory.mktemp("report")
    write_report([str(real_runs)], folder, formats=["md"])
    return folder


def test_every_figure_is_a_picture_that_is_not_blank(written, real_runs):
    drawn = {f.name for f in make_report([str(real_runs)]).figures if f.drawing is not None}
    expected = {"accuracy", "task-loss", "similarity", "dendrogram", "labels", "confusion"}
    expected |= {"client-noise", "f-score", "selection", "communication", "timing", "test-loss"}

    pictures = {path.stem: path for path in (written / "report_figures").glob("*.png")}

    assert expected <= drawn
    assert pictures.keys() == drawn
    for path in pictures.values():
        check_picture(path.read_bytes())


def test_pdf_is_vector_and_repeats_byte_by_byte(real_runs):
    report = make_report([str(real_runs)])
    figure = next(f for f in report.figures if f.name == "accuracy")

    pdf = draw(figure, report.methods, "pdf")

    assert pdf.startswith(b"%PDF")
    assert b"/Subtype /Image" not in pdf
    assert draw(figure, report.methods, "pdf") == pdf


def test_markdown_shows_the_table_and_every_picture(written, real_runs):
    text = (written / "report.md").read_text()
    accuracy = make_report([str(real_runs)]).tables[0].rows[0][2].text

    links = re.findall(r"\]\((report_figures/.+?\.png)\)", text)

    assert f"| fb\\_nll | 2 | **{accuracy}** |" in text
    assert links
    assert all((written / link).is_file() for link in links)


def test_latex_names_files_that_exist_and_closes_what_it_opens(write_run, tmp_path):
    out = tmp_path / "o.tex"
    write_report([str(write_run("fb_nll", 0, [0.5, 0.75], rounds=3))], out)
    text = out.read_text()

    files = re.findall(r"\\includegraphics\[.*?\]\{(.+?)\}", text)

    assert "o_figures/accuracy.pdf" in files
    assert all((tmp_path / file).read_bytes().startswith(b"%PDF") for file in files)
    for name in ("table", "tabular", "figure", "document", "itemize"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") > 0
    assert r"fb\_nll & 1 (2/3 rounds) & 75.00 & 62.50 & 75.00 &" in text


def test_special_characters_are_escaped():
    cells = [Cell(r"a_b|50% & $x$ #1 {~^\}", None), Cell("-1.5 ± 0.2", -1.5, best=True)]
    table = Table("t", "T", "c", ["name", "value"], [cells])
    report = Report("t", "m", [table], [], [], {}, {}, [])

    markdown, latex = write_markdown(report, "p"), write_latex(report, "p")

    assert r"a\_b\|50% & $x$ \#1 \{~^\\\} | **-1.5 ± 0.2** |" in markdown
    escaped = r"a\_b|50\% \& \$x\$ \#1 \{\textasciitilde{}\textasciicircum{}\textbackslash{}\}"
    assert rf"{escaped} & \textbf{{$-$1.5 $\pm$ 0.2}} \\" in latex


def test_report_is_replaced_with_its_stale_pictures_and_nothing_else(write_run, tmp_path):
    matrix = np.eye(3)
    first = write_run("fb_nll", 0, [0.5], groups=[0, 1, 1], arrays={"similarity": matrix})
    second = write_run("single", 0, [0.5])
    out = tmp_path / "out"
    write_report([str(first)], out, formats=["png"])
    (out / "report_figures" / "mine.png").write_bytes(b"mine")

    write_report([str(second)], out, formats=["png"])

    names = {path.name for path in (out / "report_figures").iterdir()}
    assert "similarity.png" not in names
    assert {"accuracy.png", "mine.png"} <= names
    assert not any(name.endswith(".part") for name in names)


def test_page_is_the_default_repeats_and_is_replaced(real_runs, write_run, tmp_path):
    out, folder = tmp_path / "page.html", real_runs.as_uri()

    written = write_report([folder], out)
    text = out.read_text()
    write_report([folder], out)

    assert list(written.files) == [out]
    assert written.report.tables[0].rows[0][2].text in text
    assert out.read_text() == text
    write_report([str(write_run("rhfl", 0, [0.5]))], out)
    assert "fb_nll" not in out.read_text()[: text.index("<style>")]


def test_a_file_that_is_no_report_stays(write_run, tmp_path):
    run = str(write_run("single", 0, [0.5]))
    page, picture = tmp_path / "page.md", tmp_path / "x_figures" / "accuracy.png"
    page.write_text("mine")
    picture.parent.mkdir()
    picture.write_bytes(b"mine")

    with pytest.raises(OutputError, match="is not a report of raysim"):
        write_report([run], page)
    with pytest.raises(OutputError, match="is not a picture of raysim"):
        write_report([run], tmp_path / "x.md")

    assert (page.read_text(), picture.read_bytes()) == ("mine", b"mine")
    assert not (tmp_path / "x.md").exists()


@pytest.mark.parametrize(
    ("out", "formats", "words"),
    [
        ("report.txt", None, "must end in"),
        ("report.png", None, "must end in"),
        ("report.md", ["html"], "make them agree"),
        (None, ["gif"], "got 'gif'"),
        (None, [], "no format"),
        ("s3://bucket/report.html", None, "path of this machine"),
    ],
)
def test_wrong_output_is_refused_before_any_work(out, formats, words):
    with pytest.raises(ConfigError, match=words):
        plan_output(out, formats)


@pytest.mark.parametrize(
    ("package", "form"),
    [("pandas", "png"), ("jinja2", "md"), ("jinja2", "html"), ("plotly", "html")],
)
def test_a_missing_package_is_named_with_its_extra_before_any_work(monkeypatch, package, form):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else 1)

    with pytest.raises(EnvironmentNotFit, match=rf"as {form} needs {package}.*raysim\[report\]"):
        write_report(["nowhere"], formats=[form])


def test_output_may_be_a_file_or_a_folder(tmp_path):
    assert plan_output(None).document("html") == Path("report.html")
    assert plan_output("a/b.tex").formats == ("tex",)
    assert plan_output("a/b.tex").forms == ["pdf"]
    assert plan_output(str(tmp_path), ["md"]).document("md") == tmp_path / "report.md"
    assert plan_output("new/", ["png"]).pictures == Path("new/report_figures")
    assert plan_output("a/b.html", ["md", "html"]).document("md") == Path("a/b.md")


def test_verb_says_what_it_wrote_and_what_is_missing(write_run, tmp_path):
    partial = write_run("single", 0, [0.5], rounds=2)
    out = tmp_path / "o.md"

    found = CliRunner().invoke(command, [str(partial), "--out", str(out), "--title", "Own title"])

    assert found.exit_code == 0, found.output
    assert f"{partial}: not finished, 1 of 2 rounds are recorded." in found.output
    assert "similarity" in found.output
    assert f"written to {out}" in found.output
    assert "# Own title" in out.read_text()
