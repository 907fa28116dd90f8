"""The roofline widget: its figures are those of the pages and of sealed results, and every choice is drawn."""

import json
import re
from xml.etree import ElementTree

import pytest

from book.tools import roofline_widget, screen_files
from tiny_llm_course.see.week_4_day_2 import expected_experts

TABLE = json.loads(roofline_widget.table())
PLACE = r'<div class="chunk-widget roofline-widget"([^>]*)>'
TEXTS = [page.read_text(encoding="utf-8") for page in sorted((screen_files.FOLDER.parent).glob("*.md"))]
PLACES = [place for text in TEXTS for place in re.findall(PLACE, text)]
PAGES = [dict(re.findall(r'data-(\w+)="([^"]*)"', place)) for place in PLACES]


def at(**change) -> dict:
    return {**roofline_widget.START, **change}


def step(run, **change) -> dict:
    return run(f"roofline.step({json.dumps(TABLE)}, {json.dumps(at(**change))})")


GIGABYTES = {
    "Qwen3-0.6B": (1.19, 0.78, 0.59),
    "Qwen3-4B": (8.04, 4.64, 3.05),
    "Qwen3-8B": (15.14, 8.63, 5.59),
}


@pytest.mark.parametrize(("model", "gigabytes"), GIGABYTES.items())
def test_a_step_reads_every_layer_and_the_head(run, model, gigabytes):
    read = [step(run, model=model, bits=bits)["bytes"] / 1e9 for bits in TABLE["bits"]]
    assert read == pytest.approx(gigabytes, abs=0.006)


def test_a_step_takes_the_longer_of_reading_and_computing(run):
    reads, computes = step(run), step(run, tokens=2048)
    assert reads["seconds"] == reads["memory"] == pytest.approx(0.01192, rel=1e-3)
    assert computes["seconds"] == computes["arithmetic"] == pytest.approx(2.441, rel=1e-3)
    assert [computes[name] for name in ("bytes", "memory")] == [reads[name] for name in ("bytes", "memory")]


@pytest.mark.parametrize("model", TABLE["models"])
@pytest.mark.parametrize("device", TABLE["devices"])
def test_the_ridge_is_the_first_step_that_computes_longer_than_it_reads(run, model, device):
    found = run(f"roofline.ridge({json.dumps(TABLE)}, {json.dumps(at(model=model, device=device))})")
    before, there = (step(run, model=model, device=device, tokens=n) for n in (found - 1, found))
    assert there["arithmetic"] >= there["memory"] and before["arithmetic"] < before["memory"]


def test_a_mixture_has_its_parameters_and_reads_the_experts_of_day_4_2(run):
    parts = roofline_widget.MIXTURE
    assert parts["layers"] + 2 * parts["head"] + parts["experts"] == pytest.approx(30.5e9, rel=2e-3)
    for tokens in (1, 16, 512):
        read = step(run, model="Qwen3-30B-A3B", tokens=tokens)["bytes"] / 2 - parts["layers"] - parts["head"]
        assert read / parts["experts"] * 128 == pytest.approx(expected_experts(tokens, 128, 8))


@pytest.mark.parametrize("width", [300, 760])
@pytest.mark.parametrize("tokens", [1, 2048])
def test_every_choice_is_drawn_inside_its_frame(run, width, tokens):
    for model in TABLE["models"]:
        for device in TABLE["devices"]:
            choice = json.dumps(at(model=model, device=device, bits="4 bits", tokens=tokens))
            svg = run(f"roofline.draw({json.dumps(TABLE)}, {choice}, {width})")
            assert not re.search(r"NaN|undefined|Infinity|null|style=|stroke=|fill=\"#", svg)
            for dot in ElementTree.fromstring(svg).iter("circle"):
                assert 50 < float(dot.get("cx")) < width and 25 < float(dot.get("cy")) <= 252


def test_six_pages_begin_at_choices_that_exist(run):
    assert len(PAGES) == 6
    for page in PAGES:
        begins = at(**page)
        assert begins["model"] in TABLE["models"] and begins["device"] in TABLE["devices"]
        assert begins["bits"] in TABLE["bits"] and int(begins["tokens"]) in run("roofline.TOKENS")
