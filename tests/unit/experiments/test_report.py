"""Pages from results with known numbers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dblp.experiments.catalogue import EXPERIMENTS
from dblp.experiments.charts import Series, bar_chart, line_chart
from dblp.experiments.report import write_report
from tests.unit.experiments.made_up import stored


class Outline(HTMLParser):
    """Checks that elements close in order, and collects what a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.count: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.fetched += [f"{tag} {key}" for key, _ in attrs if key in ("src", "href")]
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_page_is_one_file_that_fetches_nothing(tmp_path: Path, name: str) -> None:
    stored(tmp_path, name)
    page, markdown, _ = write_report(tmp_path)
    text = page.read_text()
    outline = Outline()
    outline.feed(text)
    assert not outline.open and not outline.fetched and "script" not in outline.count
    assert "@import" not in text and "url(" not in text
    assert '<meta name="viewport"' in text
    assert outline.count["svg"] >= 1
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", markdown.read_text()):
        ElementTree.fromstring((tmp_path / picture).read_text())


def test_the_numbers_of_every_cell_are_kept_without_its_steps(tmp_path: Path) -> None:
    stored(tmp_path, "resnet50")
    *_, numbers = write_report(tmp_path)
    (run,) = json.loads(numbers.read_text())
    assert run["experiment"] == "resnet50" and run["machine"] is not None
    cell = next(cell for cell in run["cells"] if cell["key"] == "train-baseline-bursts3-s1")
    assert cell["setting"]["low"] == "2.4%" and cell["workload"]["model"] == "resnet"
    assert cell["tail_send_s"] == pytest.approx(0.3) and cell["bursts_send_s"] == [0.3] * 3
    assert cell["score"] == cell["scores"][-1]["value"] and "steps" not in cell
    traffic = next(cell for cell in run["cells"] if cell["kind"] == "traffic")
    assert "score" not in traffic  # NaN is no JSON


def row(text: str, start: str) -> list[str]:
    """Cells of the first row of a Markdown table that starts like this."""
    (line, *_) = [line for line in text.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_ratios_of_this_run_stand_beside_those_of_the_paper(tmp_path: Path) -> None:
    stored(tmp_path, "efficientnet-b0")
    text = write_report(tmp_path)[1].read_text()
    # 300 ms against 40 ms, in every seed.
    assert (
        row(text, "Microburst 1")[3] == "7.50 ± 0.00×" and row(text, "Microburst 1")[-1] == "4.68×"
    )
    assert row(text, "Microburst 2")[-1] == "5.88×"
    assert row(text, "Tail")[3] == "7.50 ± 0.00×" and row(text, "Tail")[-1] == "1.91×"
    mean = (38 * 0.030 + 2 * 0.3) / (38 * 0.020 + 2 * 0.04)
    assert row(text, "Average")[3] == f"{mean:.2f} ± 0.00×" and row(text, "Average")[-1] == "1.56×"
    assert row(text, "EfficientNet-B0 ")[1:] == ["1.500 ± 0.000", "2", "1.174"]
    assert row(text, "EfficientNet-B0, bursts")[-1] == "1.239"
    assert row(text, "baseline (fixed 0.8%) ")[-1] == "71.3"
    assert row(text, "baseline (fixed 0.8%), 2 bursts")[-1] == "72.33"


CHANCE = "a difference that may be chance (0 is in its 95 % interval)"


@pytest.mark.parametrize(
    ("late", "early", "verdict"),
    [
        ([0.69, 0.71, 0.70], [0.50, 0.52, 0.50], "as in Fig. 1"),
        ([0.50, 0.52, 0.50], [0.69, 0.71, 0.70], "the opposite of Fig. 1"),
        ([0.60, 0.70, 0.65], [0.62, 0.66, 0.66], CHANCE),
        ([0.60, 0.61, 0.62], [0.60, 0.60, 0.60], CHANCE),
        ([0.50, 0.52], [0.69, 0.71], "undecided, it takes 3 seeds at least"),
    ],
)
def test_the_verdict_on_fig_1(
    tmp_path: Path, late: list[float], early: list[float], verdict: str
) -> None:
    scores = {"none": [0.7, 0.72, 0.71], "early-80": early, "late-80": late}
    stored(tmp_path, "phase-drop", scores, seeds=len(late))
    (sentence,) = [
        line
        for line in write_report(tmp_path)[1].read_text().splitlines()
        if line.startswith("- Dropping 80 %")
    ]
    # The made-up cells deliver 99.2 % in ten steps and 60 % in thirty.
    assert f"(n = {len(late)}): {verdict}. In those steps 30.2 ± 0.0 %" in sentence


def test_eq_1_on_its_own_tolerance_is_told_from_eq_1_on_the_training(tmp_path: Path) -> None:
    stored(tmp_path, "efficientnet-b0")
    text = write_report(tmp_path)[1].read_text()
    counted = text[text.index("How often Eq. 1 fires") :]
    # The made-up norm as sent never jumps; that of the mean does at steps 10, 20 and 30.
    assert row(counted, "DBLP as in the paper")[1:4] == ["25 ± 0", "0.0 ± 0.0", "3.0 ± 0.0"]
    assert row(counted, "DBLP as in the paper")[4] == "40 ± 0"


def test_the_score_is_drawn_over_p_high(tmp_path: Path) -> None:
    stored(tmp_path, "sensitivity", {"high-90": [0.1, 0.1]})
    write_report(tmp_path)
    tree = ElementTree.parse(tmp_path / "sensitivity-small-high.svg")
    swept = tree.findall("{http://www.w3.org/2000/svg}polyline")[0].get("points").split()
    heights = [float(point.split(",")[1]) for point in swept]
    assert len(heights) == 8  # 20 … 90 %
    assert heights[-1] > max(heights[:-1]) + 100  # lower on the page: a worse score


def test_an_unfinished_run_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    store = stored(tmp_path, "phase-drop")
    for key in store.info().cells[3:]:
        store.path_of(key).unlink()
    text = write_report(tmp_path)[1].read_text()
    assert "3 of 10 finished" in text and "7 of 10 cells were not run" in text
    assert "With one seed there is no spread" in text
    for key in store.info().cells[:3]:
        store.path_of(key).unlink()
    assert "No cell of this run is finished yet" in write_report(tmp_path)[1].read_text()


def test_several_runs_make_one_page_and_table_v(tmp_path: Path) -> None:
    for name in ("efficientnet-b0", "alexnet"):
        stored(tmp_path / name, name)
    text = write_report(tmp_path, tmp_path / "page")[1].read_text()
    whole = text[text.index("## All models") :]
    assert row(whole, "AlexNet ")[-1] == "1.339"
    assert row(whole, "EfficientNet-B0 ")[-1] == "1.174"


def test_charts_survive_what_is_not_finite_or_flat() -> None:
    series = [
        Series(
            name="a <b>", xs=[0, 1, 2], ys=[1.0, float("nan"), 1.0], low=[1.0] * 3, high=[1.0] * 3
        ),
        Series(name="long", xs=range(5000), ys=[1.0] * 4999 + [9.0]),
    ]
    for log in (False, True):
        picture = line_chart(series, title="t & t", x_label="x", y_label="y", log=log, marks=[1])
        assert "nan" not in picture.lower().replace("finance", "")
        tree = ElementTree.fromstring(picture)
        lines = tree.findall("{http://www.w3.org/2000/svg}polyline")
        assert len(lines) == 2
        places = [tuple(map(float, p.split(","))) for p in lines[1].get("points").split()]
        assert len(places) <= 400
        assert min(y for _, y in places) < max(y for _, y in places) - 100  # the spike is there
    ElementTree.fromstring(bar_chart(["g"], [("b", [float("nan")])], title="t", y_label="y"))


def test_a_report_does_not_need_torch() -> None:
    program = "import sys, dblp.experiments.report; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
