"""Figures: what is drawn from known runs, that they are self-contained, and that methods differ in print too."""

import re
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from fake_runs import make
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fl_lightning.reporting import bars
from fl_lightning.reporting import figures as drawn
from fl_lightning.reporting.drawing import Look, svg
from fl_lightning.reporting.figures import figures
from fl_lightning.reporting.summary import group


@pytest.fixture
def groups(tmp_path):
    runs = []
    for seed in range(2):
        curve = [(0.5, 0.4), (0.6 + seed / 10, 0.5), (0.7, 0.6)]
        matrices = {"round": 2, "clients": [0, 1], "similarity": [[1.0, 0.2], [0.2, 1.0]], "alpha": [[0.6, 0.4], [0.4, 0.6]]}
        runs += [
            make(tmp_path, "Fed", seed, {"data": "Cora"}, curve=curve, matrices=matrices),
            make(
                tmp_path,
                "Alone",
                seed,
                {"data": "Cora"},
                strategy="LocalOnly",
                glob=None,
                each=[0.3, 0.4],
                curve=[(None, 0.5)] * 3,
            ),
            make(tmp_path, "Central", seed, {"data": "Cora"}, strategy="Central"),
        ]
    return group(runs)


def test_every_kind_is_drawn_and_nothing_is_fetched(groups):
    found = {f.name: f for f in figures(groups)}
    assert set(found) == {"bars_accuracy", "rounds_Cora", "bytes_Cora", "clients_Cora", "partition_Cora", "similarity_Cora_Fed"}
    for figure in found.values():
        root = ElementTree.fromstring(figure.svg)
        links = [v for e in root.iter() for k, v in e.attrib.items() if k.endswith("href")]
        assert all(v.startswith(("#", "data:")) for v in links) and not re.search(r"url\((?!#)|<script|@import", figure.svg)
        assert figure.caption.endswith(".")
    assert "after round 3 (seed 0)" in found["similarity_Cora_Fed"].caption


def test_the_same_runs_give_the_same_bytes(groups):
    assert [f.svg for f in figures(groups)] == [f.svg for f in figures(groups)]


def test_a_setting_without_files_still_has_bars_and_clients(tmp_path):
    found = figures(group([make(tmp_path, "Fed", 0, partition=None)]))
    assert [f.name for f in found] == ["bars_accuracy", "clients_all_runs"]


def axes_of(monkeypatch, draw, *arguments):
    """The axes of the figure that ``draw`` makes."""
    seen = []
    for module in (drawn, bars):
        monkeypatch.setattr(module, "svg", lambda canvas: seen.append(canvas) or svg(canvas))
    draw(*arguments)
    return seen[0].axes


def test_bars_have_the_means_beside_their_methods_in_percent(groups, monkeypatch):
    (axes,) = axes_of(monkeypatch, drawn.bars, groups, Look(groups), "accuracy")
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([0.8, 0.35, 0.8])
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["Fed", "Alone", "Central"]  # baselines come last
    assert [text.get_text() for text in axes.texts] == ["80.0 %", "35.0 %", "80.0 %"]
    assert axes.xaxis.get_major_formatter()(0.8) == "80%" and axes.get_title(loc="left") == "Cora"


LONG = "a method of somebody with a name that takes far more room than there is, number {}"


def overlaps(canvas):
    """Pairs of texts (titles, names, ticks, legends) of which one covers the other, and texts that leave the picture."""
    renderer = FigureCanvasAgg(canvas).get_renderer()
    canvas.draw(renderer)
    texts = [t for found in canvas.legends for t in found.get_texts()]
    for axes in canvas.axes:
        ticks = [tick.label1 for axis in (axes.xaxis, axes.yaxis) for tick in axis._update_ticks()]  # those that are drawn
        texts += [*ticks, *axes.texts, axes.xaxis.label, axes.yaxis.label, axes._left_title]
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in texts if t.get_visible() and t.get_text().strip()]
    whole = canvas.bbox
    outside = [n for n, b in boxes if b.x0 < -1 or b.y0 < -1 or b.x1 > whole.x1 + 1 or b.y1 > whole.y1 + 1]
    return outside + [(n, m) for i, (n, b) in enumerate(boxes) for m, c in boxes[:i] if b.shrunk(0.9, 0.8).overlaps(c)]


@pytest.mark.parametrize(("name", "settings"), [("m{}", 9), (LONG, 1), (LONG, 2)])
def test_long_names_and_many_settings_stay_apart_and_in_the_picture(tmp_path, monkeypatch, settings, name):
    long = "own molecules of a company with several sites.csv, scaffolds of the first year, num_clients"
    runs = [
        make(tmp_path / f"{d}{m}", name.format(m), 0, {"data": f"{long} {d}"} if settings > 1 else {}, curve=[(0.5, 0.4)] * 2)
        for d in range(settings) for m in range(4)
    ]  # fmt: skip
    own = group(runs)
    seen = []
    for module in (drawn, bars):
        monkeypatch.setattr(module, "svg", lambda canvas: seen.append(canvas) or svg(canvas))
    bars.bars(own, Look(own), "accuracy")
    for draw in (drawn.rounds, drawn.traffic, drawn.clients):
        draw(own[0], Look(own))
    drawn.partition(own[0])
    assert len(seen) == 5 and [overlaps(canvas) for canvas in seen] == [[]] * 5


def test_many_settings_are_drawn_in_rows_that_fit_a_page(tmp_path, monkeypatch):
    runs = [make(tmp_path, f"m{m}", 0, {"data": f"D{d}"}, glob=d / 10) for d in range(10) for m in range(9) if (d, m) != (0, 8)]
    own = group(runs)
    panels = axes_of(monkeypatch, drawn.bars, own, Look(own), "accuracy")
    assert [len(axes.get_yticks()) for axes in panels] == [8] + [9] * 9  # the last method is missing in the first setting
    assert panels[0].figure.get_figwidth() < 9.5 and len({axes.get_position().y0 for axes in panels}) == 4
    widths = [bar.get_width() for axes in panels for bar in axes.patches]
    assert sorted(widths) == pytest.approx(sorted(r.on_global for r in runs))


def test_intervals_below_zero_are_cut_and_that_is_said(tmp_path, monkeypatch):
    own = group([make(tmp_path, "m", s, glob=1.0 + 5 * s, mode="min", metric="rmse") for s in range(2)])
    (axes,) = axes_of(monkeypatch, drawn.bars, own, Look(own), "rmse")
    assert axes.get_xlim()[0] == 0 and [text.get_text() for text in axes.texts] == ["3.5000"]
    assert "intervals that go below 0 are cut there" in drawn.bars(own, Look(own), "rmse").caption


def test_clients_say_whose_data_they_were_tested_on(tmp_path):
    without = group([make(tmp_path, "m", 0, per_client=(None, None))])[0]
    assert "on the server's test data" in drawn.clients(without, Look([without])).caption
    own = group([make(tmp_path, "n", 0)])[0]
    assert "on own test data" in drawn.clients(own, Look([own])).caption


def test_rounds_are_the_mean_over_seeds_with_the_sd_as_band(groups, monkeypatch):
    (axes,) = axes_of(monkeypatch, drawn.rounds, groups[0], Look(groups))
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines["Fed"].get_xdata()) == [1, 2, 3] and list(lines["Fed"].get_ydata()) == pytest.approx([0.5, 0.65, 0.7])
    assert "Alone" not in lines  # it has no model to validate on the server's data, which this setting is scored on
    assert list(lines["Central"].get_ydata()) == pytest.approx([0.75, 0.75])
    assert all(tick == int(tick) for tick in axes.get_xticks())  # there is no round 2.5
    band = axes.collections[0].get_paths()[0].vertices[:, 1]  # sd of .6 and .7 is .0707
    assert band.min() == pytest.approx(0.5) and max(band[abs(band - 0.7207) < 1e-3]) == pytest.approx(0.720711, abs=1e-5)


def test_bytes_grow_by_what_each_round_sent(groups, monkeypatch):
    (axes,) = axes_of(monkeypatch, drawn.traffic, groups[0], Look(groups))
    line = next(x for x in axes.lines if x.get_label() == "Fed")
    assert list(line.get_xdata()) == pytest.approx([1, 2, 3]) and axes.get_xscale() == "log"


def test_generators_count_before_the_first_round(tmp_path, monkeypatch):
    sent = {"up": 9_000_000, "down": 0, "by_kind": {"fit": 3_000_000, "exchange": 6_000_000}}
    own = group([make(tmp_path, "Fed", 0, curve=[(0.5, 0.4), (0.6, 0.5)], bytes=sent)])
    (axes,) = axes_of(monkeypatch, drawn.traffic, own[0], Look(own))
    assert list(axes.lines[0].get_xdata()) == pytest.approx([7, 8])


def test_methods_differ_in_colour_marker_and_hatch_and_in_grey(tmp_path):
    runs = [make(tmp_path, f"m{i}", 0) for i in range(6)]
    runs += [make(tmp_path, "a", 0, strategy="LocalOnly"), make(tmp_path, "c", 0, strategy="Central")]
    look = Look(group(runs))
    names = [r.method for r in runs]
    for of in (look.colour, look.marker):
        assert len({of(n) for n in names}) == len(names), of
    assert len({look.hatch(n) for n in names[:7]}) == 7  # central is the one that is solid black
    assert len({str(look.line(n)) for n in names[:6]}) == 6
    red, green, blue = zip(*(mpl.colors.to_rgb(look.colour(n)) for n in names), strict=True)
    assert max(green) < 0.75 and max(red) < 0.95 and max(blue) < 0.95  # no light line on white paper


def test_names_are_no_formulas(tmp_path):
    runs = [make(tmp_path, r"$\broken{", 0, {"data": "$x_"}, curve=[(0.5, 0.4)])]
    found = {f.name.split("_")[0]: f.caption for f in figures(group(runs))}
    assert set(found) == {"bars", "rounds", "bytes", "clients", "partition"} and found["rounds"].startswith("$x_:")


def test_many_methods_do_not_run_out(tmp_path):
    runs = [make(tmp_path, f"m{i}", 0, curve=[(0.5, 0.4)]) for i in range(11)]
    assert figures(group(runs))
