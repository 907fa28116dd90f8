"""The live widget of Day 3.5: its table is what the schedulers do, and the page draws the run of its sliders."""

import json
import re
from xml.etree import ElementTree

import pytest

from book.tools import policy_widget, screen_files, widget
from book.tools.policy_widget import BUDGETS, LOADS, OF_BUDGET, OF_TARGET, START, TARGETS, timeline
from tiny_llm_engine.solutions.solution import resolve_serving

TABLE = json.loads(
    re.sub(r"</?script[^>]*>", "", (screen_files.FOLDER / "week3-05-policies-table.html").read_text("utf-8"))
)
POSITIONS = [START, {"budget": BUDGETS[0], "target": TARGETS[-1], "load": LOADS[-1]}]


@pytest.mark.parametrize("policy", TABLE["runs"])
@pytest.mark.parametrize("at", POSITIONS, ids=["first", "corners"])
def test_the_page_shows_the_run_of_its_sliders(run, policy, at):
    shown = run(f"policiesDrawing.runsAt({json.dumps(TABLE)}, {json.dumps(at)})")
    [one] = [one for one in shown if one["policy"] == policy]
    setting = {"budget": at["budget"]} if policy in OF_BUDGET else {}
    setting = {"budget": BUDGETS[-1], "target": at["target"]} if policy in OF_TARGET else setting
    ours = timeline(resolve_serving("ref"), policy, at["load"], **setting)
    assert one == {"policy": policy, **json.loads(json.dumps(ours))}


def test_every_timeline_holds_all_tokens_and_ends_when_its_run_does():
    for by_load in TABLE["runs"].values():
        for load, settings in zip(LOADS, by_load, strict=True):
            for one in settings:
                totals = [sum(times * step[i] for times, *step in one["steps"]) for i in range(4)]
                short = 3 * 16 + 100 * (1200 * load // 1000)  # the prompts of A among them
                assert totals[2:] == [6_000, short]
                assert totals[0] == pytest.approx(one["figures"]["end"], abs=0.6)


def test_a_static_batch_computes_the_steps_of_decode_first_and_delivers_with_its_last():
    for static, first in list(zip(TABLE["runs"]["static"], TABLE["runs"]["decode-first"], strict=True))[1:]:
        assert static[0]["steps"] == first[0]["steps"]
        assert first[0]["figures"]["answer"] < static[0]["figures"]["answer"]


def test_the_sliders_bound_the_steps_of_their_policies():
    at_load = TABLE["runs"]["sarathi"][-1]
    for budget, one in zip(BUDGETS, at_load, strict=True):
        assert max(sum(step[1:]) for _, *step in one["steps"]) == budget
    for target, one in zip(TARGETS, TABLE["runs"]["slack"][-1], strict=True):
        assert one["figures"]["gap"] <= target


@pytest.mark.parametrize("width", [300, 760])
@pytest.mark.parametrize("at", POSITIONS, ids=["first", "corners"])
def test_every_position_is_drawn_without_a_hole(run, width, at):
    svg = run(f"policiesDrawing.draw({json.dumps(TABLE)}, {json.dumps(at)}, {width}, 'x')")
    root = ElementTree.fromstring(svg)
    assert not re.search(r"NaN|undefined|Infinity|null|style=|stroke=|fill=\"#", svg)
    assert max(float(box.get("x")) + float(box.get("width")) for box in root.iter("rect")) <= width
    names = [text.text for text in root.iter("text") if text.get("class") == "label-start small"]
    assert names == list(TABLE["runs"])


def test_the_picture_in_the_page_is_the_first_position():
    shown = (screen_files.FOLDER / "week3-05-policies.html").read_text(encoding="utf-8")
    with widget.scripts() as run:
        drawn = run(
            f"policiesDrawing.draw({json.dumps(TABLE)}, {json.dumps(START)}, {policy_widget.WIDTH}, 'policies-widget')"
        )
    assert shown == drawn + "\n"
