"""What is drawn, and the two files of `--plot`."""

import itertools
import json
import re
import subprocess
import sys

import pytest

from opd_conf.compare import curves, page, table
from opd_conf.compare.plot import plot
from opd_conf.compare.runs import find
from opd_conf.errors import UserError


@pytest.fixture
def runs(write, step, tmp_path):
    write("a", [step(loss=0.5), step(loss=None), step(loss=0.25)], overrides=["note=</script><b>&"])
    write("b", [step(loss=0.1)], overrides=["note=plain"])
    write("c", overrides=["note=none"])
    return find([tmp_path])


def _embedded(html):
    return json.loads(re.search(r'<script id="content" type="application/json">(.*?)</script>', html, re.S)[1])


def test_both_files_are_written(runs, tmp_path):
    picture, html = plot(runs, table.varied(runs), "loss", tmp_path / "new" / "folder")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [run["label"] for run in _embedded(html.read_text())["runs"]] == [
        "note=</script><b>&",
        "note=plain",
        "note=none",
    ]


def test_nothing_is_written_over(runs, tmp_path):
    (tmp_path / "compare.html").write_text("mine")
    with pytest.raises(UserError, match=r"compare\.html is there already"):
        plot(runs, table.varied(runs), "loss", tmp_path)
    assert (tmp_path / "compare.html").read_text() == "mine"
    assert not (tmp_path / "curves.png").exists()


def test_runs_without_a_step_cannot_be_drawn(write, tmp_path):
    write("a")
    with pytest.raises(UserError, match="nothing to draw yet"):
        plot(find([tmp_path]), {}, "loss", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("missing", ["plotly", "matplotlib"])
def test_a_missing_package_is_said_with_what_to_type(write, step, tmp_path, missing):
    folder = write("a", [step()])
    without = (
        f"import sys; sys.modules['{missing}'] = None; from opd_conf.compare.__main__ import main; sys.exit(main())"
    )
    words = [sys.executable, "-c", without, str(folder), "--plot", str(tmp_path / "new")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'opd_conf[plot]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "new").exists()


def test_content_has_values_by_run_and_figure(runs):
    found = page.content(runs, table.varied(runs), "loss")
    loss = [figure["name"] for figure in found["figures"]].index("loss")
    assert [run["y"][loss] for run in found["runs"]] == [[0.5, None, 0.25], [0.1], []]
    assert [run["x"][0] for run in found["runs"]] == [[1, 2, 3], [1], []]
    assert found["runs"][0]["x"][1] == [pytest.approx(n * 2 / 60, rel=1e-5) for n in (1, 2, 3)]
    assert found["runs"][0]["x"][2] == [100, 200, 300]


def test_metrics_that_never_change_are_left_to_the_usual_figures(runs):
    names = [figure.name for figure in curves.others(runs)]
    assert names == ["actor/distillation/loss"]


def test_no_two_curves_look_alike():
    looks = [curves.style(number) for number in range(140)]
    assert len(set(looks)) == 140
    assert len({look.colour for look in looks[:7]}) == 7


def test_colours_stay_apart_for_colour_blind_people():
    """Without red or without green, by the matrices of Machado, Oliveira and Fernandes (2009), severity 1."""
    for a, b in itertools.combinations(curves.COLOURS, 2):
        for matrix in _BLINDNESS.values():
            assert _distance(_seen(a, matrix), _seen(b, matrix)) > 8, (a, b)


_BLINDNESS = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}


def _seen(colour, matrix):
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return [sum(weight * c for weight, c in zip(row, linear, strict=True)) for row in matrix]


def _distance(one, other):
    """Euclidean in CIE Lab."""
    return sum((a - b) ** 2 for a, b in zip(_lab(one), _lab(other), strict=True)) ** 0.5


def _lab(linear):
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [max(0, sum(w * c for w, c in zip(row, linear, strict=True))) for row in rows]
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in (v / w for v, w in zip(xyz, (0.95047, 1, 1.08883), strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_long_curves_are_thinned_to_means():
    assert curves.thinned([1.0, 3.0, None, 5.0, 7.0], 2) == [2.0, 5.0, 7.0]
    assert curves.ends([1, 2, 3, 4, 5], 2) == [2.0, 4.0, 5.0]
    assert curves.smoothed([1.0, 3.0, None, 5.0], 2) == [1.0, 2.0, None, 5.0]


def test_a_page_stays_small_whatever_the_sweep(write, step, tmp_path):
    write("a", [step()] * 300)
    runs = find([tmp_path])
    assert curves.stride(runs, 100) == 1
    assert curves.stride(runs * 1000, 100) == 6
