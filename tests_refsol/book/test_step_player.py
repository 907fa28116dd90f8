"""The step player: its steps are those of the screen and keep the scheduler's promises, and each is drawn."""

import json
import re
from xml.etree import ElementTree

import pytest

from book.tools import levels_player, screen_files, step_player

LEVELS = json.loads(levels_player.story())
STORIES = {name: json.loads(step_player.story(name)) for name in step_player.STORIES}


def test_the_run_of_day_3_3_is_that_of_its_screen():
    screen = re.sub(r"<[^>]+>", "", (screen_files.FOLDER / "week3-03.html").read_text(encoding="utf-8"))
    rows = re.findall(r"^step +\d+  (\w+)", screen, re.MULTILINE)
    steps = STORIES["week3-03"]["steps"]
    letters = [
        "".join((name.lower() if decode else name) * size for name, _, size, decode, _ in step["row"])
        for step in steps
    ]
    assert letters == rows
    [preempted] = [number for number, step in enumerate(steps, 1) if "is preempted" in step["said"]]
    assert preempted == 7 and "C preempted" in screen.splitlines()[preempted + 3]


def test_the_run_of_day_3_1_shares_keeps_and_evicts():
    steps = STORIES["week3-01"]["steps"]
    hits = re.findall(r"(\w) is admitted with (\d+) tokens", " ".join(step["said"] for step in steps))
    assert hits == [("B", "8"), ("C", "16"), ("E", "24")]
    before, after = (
        step["cached"] for step in steps if step["row"][0][0] in "CD" and step["row"][0][1] in (19, 0)
    )
    assert before and not set(before) & set(after), "D has evicted what was idle"


@pytest.mark.parametrize("name", STORIES)
def test_no_step_breaks_a_promise_of_the_scheduler(name):
    story = STORIES[name]
    for step in story["steps"]:
        assert sum(entry[2] for entry in step["row"]) <= story["budget"]
        used = {block for request in step["running"] for block in request[4]}
        assert not used & set(step["cached"]) and used <= set(range(story["blocks"]))
        for _, known, computed, _, blocks in step["running"]:
            assert computed < known <= story["block"] * len(blocks)


@pytest.mark.parametrize("story", [*STORIES.values(), LEVELS], ids=[*STORIES, "week4-05"])
@pytest.mark.parametrize("width", [300, 760])
def test_each_step_is_drawn_inside_its_frame(run, story, width):
    for index, step in enumerate(story["steps"]):
        svg = run(f"stepPlayer.draw({json.dumps(story)}, {index}, {width})")
        assert not re.search(r"NaN|undefined|Infinity|null|style=|stroke=|fill=\"#", svg)
        boxes = [*ElementTree.fromstring(svg).iter("rect")]
        assert max(float(box.get("x")) + float(box.get("width")) for box in boxes) <= width
        bars = sum(box.get("class") == "head" for box in boxes)
        assert bars == sum(entry[2] for entry in step.get("row", []))
        assert ('path class="head"' in svg) == bool(step.get("copy"))


@pytest.mark.parametrize(
    "part", ["without a copy", "from memory", "from folder", "is deleted", "A shares A1"]
)
def test_the_levels_show_each_kind_of_step(part):
    assert any(part in step["said"] for step in LEVELS["steps"])
