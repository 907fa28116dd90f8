"""The policy of transfers on a given clock: no row is lost, nothing is kept twice, and what is late is given up."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_llm_extensions.kv_transfer.config import KVTransferConfig
from tiny_llm_extensions.kv_transfer.transfers import Refused, SavedBlock, text_digest
from tiny_llm_ref.serving import Incoming, Outbox

TEXT = [*range(100, 121)]  # five blocks of 4, and one token


def saved(outbox, computed, name="a"):
    blocks = outbox.to_save(name, computed)
    outbox.saved(name, blocks)
    return [(block.start, block.stop) for block in blocks]


def test_full_blocks_are_saved_once_and_the_last_one_at_the_end():
    outbox = Outbox(9, 4, 10.0)
    assert outbox.begin("a", TEXT) and not outbox.begin("a", TEXT), (
        "the second request with this id is another one"
    )
    assert saved(outbox, 3) == [] and saved(outbox, 9) == [(0, 4), (4, 8)]
    assert saved(outbox, 4) == [], "a preempted request computes what is there"
    assert not outbox.has_all("a", range(21))
    assert saved(outbox, 21) == [(8, 12), (12, 16), (16, 20), (20, 21)] and outbox.has_all("a", range(21))
    assert saved(outbox, 22) == [] and [block.start for block in outbox.unread("a", range(9, 21))] == [
        8,
        12,
        16,
        20,
    ]
    assert len({block.row for block in outbox.unread("a", range(21))}) == 6 and len(outbox.free) == 3


def test_a_full_buffer_saves_the_rest_when_a_row_is_free():
    outbox = Outbox(3, 4, 10.0)
    outbox.begin("a", TEXT)
    outbox.begin("b", TEXT)
    assert (
        saved(outbox, 8, "b") == [(0, 4), (4, 8)]
        and saved(outbox, 21) == [(0, 4)]
        and saved(outbox, 21) == []
    )
    outbox.end("b", 0.0)
    outbox.expire(10.0)
    assert saved(outbox, 21) == [(4, 8), (8, 12)] and not outbox.has_all("a", range(21))


def test_rows_are_free_when_they_were_read_or_have_waited_and_never_while_somebody_reads():
    outbox = Outbox(9, 4, 10.0)
    for name in "abc":
        outbox.begin(name, TEXT[:8])
        saved(outbox, 8, name)
        outbox.end(name, 0.0)
    assert outbox.open("a") and outbox.open("b") and not outbox.open("d")
    outbox.close("a", is_done=True, now=1.0)
    assert len(outbox.free) == 5 and not outbox.open("a")
    outbox.expire(10.0)
    assert [*outbox.transfers] == ["b"]
    outbox.close("b", is_done=False, now=11.0)
    assert len(outbox.free) == 9


def test_a_reader_that_is_gone_leaves_the_prompt_for_the_next_one():
    outbox = Outbox(9, 4, 10.0)
    outbox.begin("a", TEXT)
    saved(outbox, 8)
    outbox.open("a")
    outbox.close("a", is_done=False, now=5.0)
    assert saved(outbox, 21)[0] == (8, 12) and outbox.open("a") and len(outbox.unread("a", range(21))) == 6


def test_a_reader_that_wants_no_more_while_a_block_is_copied_leaves_no_row_behind():
    outbox = Outbox(9, 4, 10.0)
    outbox.begin("a", TEXT)
    outbox.open("a")
    blocks = outbox.to_save("a", 8)
    outbox.close("a", is_done=True, now=0.0)
    outbox.saved("a", blocks)
    assert len(outbox.free) == 9 and outbox.to_save("a", 21) == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("bsecod"), st.sampled_from("xyz"), st.integers(0, 24)), max_size=60)
)
def test_every_row_is_free_or_in_one_piece(steps):
    outbox, readers = Outbox(7, 4, 6.0), dict.fromkeys("xyz", 0)
    for now, (step, name, number) in enumerate(steps):
        if step == "b":
            outbox.begin(name, TEXT[: 1 + number % 21])
        if step == "s":
            saved(outbox, number, name)
        if step == "e":
            outbox.end(name, now)
        if step == "o":
            readers[name] += outbox.open(name)
        if step in "cd" and readers[name]:
            readers[name] -= 1
            outbox.close(name, step == "d", now)
        kept = [block.row for each in outbox.transfers.values() for block in each.blocks]
        assert sorted([*outbox.free, *kept]) == [*range(7)]
        assert all(outbox.transfers[each].readers == count for each, count in readers.items() if count)
    outbox.expire(1e9)
    assert all(each.readers or not each.is_over for each in outbox.transfers.values())


def incoming(received=0):
    return Incoming(TEXT, received, patience=5.0, deadline=5.0)


def test_pieces_are_taken_in_their_order_up_to_the_token_that_is_computed_here():
    one = incoming(received=6)
    assert one.wanted == 20
    assert one.accept(SavedBlock(4, 8, 0), text_digest(TEXT[:8]), 1.0) == range(6, 8)
    assert not one.accept(SavedBlock(4, 8, 0), text_digest(TEXT[:8]), 1.0), "it came twice"
    assert one.accept(SavedBlock(8, 21, 0), text_digest(TEXT), 1.0) == range(8, 20) and one.received == 20


@pytest.mark.parametrize(
    "block", [SavedBlock(4, 8, 0), SavedBlock(0, 22, 0), SavedBlock(0, 0, 0), SavedBlock(-4, 4, 0)]
)
def test_a_piece_that_does_not_follow_is_refused(block):
    with pytest.raises(Refused, match="came after 0"):
        incoming().accept(block, text_digest(TEXT[: block.stop]), 0.0)


def test_a_piece_of_another_text_is_refused():
    with pytest.raises(Refused, match="another text"):
        incoming().accept(SavedBlock(0, 4, 0), text_digest([*TEXT[:3], 7]), 0.0)


def test_it_is_late_when_nothing_has_come_for_its_patience():
    one = incoming()
    assert not one.is_late(5.0) and one.is_late(5.1)
    one.accept(SavedBlock(0, 4, 0), text_digest(TEXT[:4]), 4.0)
    assert not one.is_late(9.0) and one.is_late(9.1) and "5 s" in one.lateness


WRONG = {
    "kv_role is ''": {},
    "kv_role is 'producer'": {"kv_role": "producer"},
    "kv_port is -1": {"kv_role": "kv_both", "kv_port": -1},
    "kv_ip is '10.0.0.1'": {"kv_role": "kv_both", "kv_ip": "10.0.0.1"},
    "kv_buffer_size": {"kv_role": "kv_both", "kv_buffer_size": "1GB"},
    "'layers' is unknown": {"kv_role": "kv_both", "kv_connector_extra_config": {"layers": 3}},
    "kv_connector is 'NixlConnector'": {"kv_role": "kv_both", "kv_connector": "NixlConnector"},
    "kv_load_failure_policy": {"kv_role": "kv_both", "kv_load_failure_policy": "fail"},
}


@pytest.mark.parametrize("error", WRONG)
def test_wrong_options_are_refused_in_one_line(error):
    with pytest.raises(ValueError, match=error):
        KVTransferConfig.of(WRONG[error])


def test_options_have_the_names_of_vllm(monkeypatch):
    given = {
        "kv_role": "kv_producer",
        "engine_id": "e",
        "kv_rank": 0,
        "kv_parallel_size": 1,
        "kv_ip": "10.0.0.1",
    }
    config = KVTransferConfig.of({**given, "kv_connector_extra_config": {"secret": "s", "transport": "tcp"}})
    assert config.is_kv_producer and not config.is_kv_consumer and config.may_reach("other.host")
    monkeypatch.setenv("TINY_LLM_KV_SECRET", "of the environment")
    assert KVTransferConfig.of(given).secret == "of the environment"
    assert not KVTransferConfig("kv_both").may_reach("127.example.org")
