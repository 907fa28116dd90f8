"""Engines that are given several options at once answer as a plain one does; see `matrix.py`.

The pairs that have failed once run always, with some rows beside them; all rows need --long.
"""

import json
from dataclasses import fields
from inspect import signature

import pytest

from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_extensions.engine_options import EngineOptions
from tiny_llm_extensions.llm import LLM
from tiny_llm_ref import SamplingParams

from .matrix import ASKS, LEVELS, NO_EFFECT, NUMBERS, RANKS, check, pairs_of, refusal, refused_pairs, rows

MEMORY, FOLDER = {"kv_offloading_size": 1}, {"kv_offloading_folder kv_offloading_folder_size": 1}
POOL = {"num_blocks block_size": 1}  # a small one
AHEAD = {"async_scheduling": 1}
EVENTS = {name: {"event": number} for number, name in enumerate(LEVELS["event"])}
FAILED_ONCE = [
    POOL | MEMORY | {"speculative_config": 1},
    POOL | MEMORY | {"speculative_config": 2, "asks": 1},
    POOL | MEMORY | AHEAD | EVENTS["copy"],
    POOL | MEMORY | AHEAD | EVENTS["call"],
    POOL | FOLDER | EVENTS["restart"],
    POOL | FOLDER | AHEAD | EVENTS["abort"],
]
# Without other processes, and without compiling.
SOME = [row for row in rows() if not any(row[name] for name in (*RANKS, "enforce_eager"))][:4]


def words(row) -> str:
    """What a row has beside the usual."""
    return ", ".join(f"{name.split()[0]}={LEVELS[name][number]}" for name, number in row.items() if number)


@pytest.mark.parametrize("backend", installed_backends())
@pytest.mark.parametrize("row", [*FAILED_ONCE, *SOME], ids=words)
def test_answers_are_those_of_a_plain_engine(backend, row):
    check(backend, row)


@pytest.mark.long
@pytest.mark.parametrize("backend", installed_backends())
def test_all_pairs_of_options(backend, forks, subtests):
    """Ranks in a process of their own: MLX makes one group of them per process."""
    for row in rows():
        with subtests.test(words(row)):
            if any(row[name] for name in RANKS):
                done = forks.run("tests_refsol.engine.matrix", json.dumps([backend, row]))
                assert done.returncode == 0, done.stderr
            else:
                check(backend, row)


def test_rows_have_every_pair_that_is_not_refused():
    covered = {pair for row in rows() for pair in pairs_of({name: [n] for name, n in row.items()})}
    assert covered == {*pairs_of(NUMBERS)} - refused_pairs()
    assert not [words(row) for row in rows() if refusal(row)]
    assert len(refused_pairs()) < len(covered) / 20


def test_every_option_is_in_the_matrix_or_changes_no_answer():
    """A new one is given levels, or a reason; one that is True or False gets both by itself."""
    names = {each.name for each in fields(EngineOptions)} | signature(LLM).parameters.keys()
    assert names == {*" ".join(LEVELS).split()} - {"asks", "event"} | NO_EFFECT.keys()
    asked = {name for asks in ASKS.values() for _, params in asks for name in params}
    assert {each.name for each in fields(SamplingParams)} == asked | {"max_tokens", "extra_args"}
