"""The picture of the shares: areas that add up, over exactly what is read."""

import re
from xml.etree import ElementTree as ET

import pytest

import millstream
from millstream.errors import UsageError
from millstream.mixing.share_plot import plot_shares
from tests.helpers.mixtures import windows_of

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    return windows_of(tmp_path_factory.mktemp("views"), {"web": 100, "<&>": 50})


def areas(picture):
    """The area of each source, as a share of all."""
    polygons = ET.fromstring(picture).findall(f"{SVG}polygon")
    found = []
    for polygon in polygons:
        points = [tuple(map(float, pair.split(","))) for pair in polygon.get("points").split()]
        turned = zip(points, points[1:] + points[:1], strict=True)
        found.append(abs(sum(x * v - u * y for (x, y), (u, v) in turned)) / 2)
    return [area / sum(found) for area in found]


def texts(picture):
    return [text.text for text in ET.fromstring(picture).findall(f"{SVG}text")]


def test_areas_are_the_shares_of_the_samples(views):
    mixture = millstream.mix({name: (view, 1) for name, view in views.items()})
    changed = mixture.change(4000, {"web": 1, "<&>": 3}, over=2000)
    for each, positions in ((mixture, 1000), (changed, 10_000), (changed, 3)):
        expected = [source.share for source in each.describe(positions).sources]
        assert areas(plot_shares(each, positions)) == pytest.approx(expected, abs=0.005)


def test_names_are_escaped_and_axes_are_labelled(views):
    mixture = millstream.mix({name: (view, 1) for name, view in views.items()})
    assert {"web", "<&>", "100 %", "positions", "1,000"} <= set(texts(plot_shares(mixture, 1000)))
    assert {"steps", "125"} <= set(texts(plot_shares(mixture, 1000, step_size=8)))


def test_the_picture_ends_where_the_mixture_does(views):
    limited = millstream.MixtureSource(views["web"], 1, max_epochs=1)
    mixture = millstream.mix({"web": limited, "<&>": (views["<&>"], 1)})
    picture = plot_shares(mixture, 10**6)
    assert f"{len(mixture):,}" in texts(picture)
    assert picture == plot_shares(mixture, len(mixture))


def test_many_sources_share_a_few_colours(views):
    mixture = millstream.mix({f"s{k}": (views["web"], 1) for k in range(30)})
    picture = plot_shares(mixture, 3000)
    assert len(areas(picture)) == 30
    assert len(set(re.findall(r"#[0-9a-f]{6}", picture))) == 8


@pytest.mark.parametrize("arguments", [(0,), (-5,), (1 << 61,), ("x",), (10, 0), (10, -1)])
def test_no_positions_or_steps_are_refused(views, arguments):
    mixture = millstream.mix({"web": (views["web"], 1)})
    with pytest.raises(UsageError, match=r"positions is|step_size is"):
        plot_shares(mixture, *arguments)
