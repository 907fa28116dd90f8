"""What a loop may expect of a KV connector: the same calls on `TinyConnector` and on the fake of the day tests."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from support.served import sequence
from support.transfers import joined
from tiny_llm_course.trace.simulation.simulated_model import SimulatedClock
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_ref import serving as s

from .pairs import engine, until

PROMPT = [*range(5, 26)]  # 21 tokens, in blocks of 4; the reader's have 6
SIZES = {"kv_producer": 4, "kv_consumer": 6}
PATIENCE = 1000.0  # seconds of a clock that stands still


@dataclass
class Side:
    """An engine, or a fake one, and its connector."""

    made: Any
    connector: Any
    clock: SimulatedClock

    def request(self, name, does, port=0):
        """A request with blocks, whose prompt is computed or read under this name."""
        where = {"transfer_id": name, "remote_host": "127.0.0.1", "remote_port": port}
        made = sequence(s, PROMPT, extra_args={"kv_transfer_params": {**where, does: True}})
        made.block_table = s.BlockTable(self.made.allocator)
        made.block_table.reserve(len(PROMPT))
        self.connector.on_new_request(made)
        return made

    def loaded(self, stop):
        """Loads until this token; returns the positions of each load."""
        spans = []

        def has_all():
            for load in self.connector.build_connector_meta():
                self.connector.start_load_kv(load)
                spans.append(load.tokens)
            return spans and spans[-1].stop >= stop

        assert until(has_all), f"{spans} came, and nothing more"
        return spans

    def finished(self):
        """The requests that get nothing more, as soon as there are any."""
        finished = []
        until(lambda: finished.extend(self.connector.get_finished()) or finished)
        return finished


def real_sides(folder):
    clock, extra = SimulatedClock(), {"patience": PATIENCE}
    for role, size in SIZES.items():
        config = {"kv_role": role, "kv_port": 0, "kv_buffer_size": 4e6, "kv_connector_extra_config": extra}
        made = engine(installed_backends()[0], folder, kv_transfer_config=config, block_size=size)
        connector = made.extensions["kv_transfer"]
        connector.here = replace(connector.here, clock=clock)
        yield Side(made, connector, clock)


def fake_sides(folder):
    pair = joined(s, *({"block_size": size} for size in SIZES.values()), patience=PATIENCE)
    pair[0].model.memory.update(dict.fromkeys(range(1000), (7, 7)))
    return [Side(made, made.connector, made.model.clock) for made in pair]


@pytest.mark.parametrize("sides", [real_sides, fake_sides])
def test_a_fake_connector_keeps_the_contract_of_the_real_one(two_layers, sides):
    sender, reader = sides(two_layers)
    asks = reader.connector.get_num_new_matched_tokens
    address = getattr(sender.connector, "address", None) or ":0"

    def both(name):
        """A prompt that is about to be read."""
        sent = sender.request(name, "do_remote_decode")
        read = reader.request(name, "do_remote_prefill", int(address.rpartition(":")[2]))
        assert asks(read) == 20
        reader.connector.update_state_after_alloc(read, 20)
        assert asks(read) == 0, "it waits once"
        return sent, read

    assert asks(sequence(s, PROMPT)) == 0
    sent, read = both("whole")
    sender.connector.save_kv(sent, 9)
    assert reader.loaded(8) == [range(4), range(4, 8)] and not reader.connector.get_finished()
    sender.connector.save_kv(sent, 21)
    sender.connector.request_finished(sent)
    assert reader.loaded(20) == [range(8, 12), range(12, 16), range(16, 20)]
    assert reader.finished() == [read] and not reader.connector.get_finished()

    sent, read = both("ends early")
    sender.connector.save_kv(sent, 9)
    sender.connector.request_finished(sent)
    assert reader.loaded(8) and reader.finished() == [read]

    sent, read = both("its reader leaves")
    reader.connector.request_finished(read)
    sender.connector.save_kv(sent, 21)
    assert not [*reader.connector.build_connector_meta()] and not reader.connector.get_finished()

    sent, read = both("is late")
    reader.clock.now += PATIENCE
    assert not reader.connector.get_finished(), "at the deadline itself there is still time"
    reader.clock.now += 1.0
    assert reader.connector.get_finished() == [read]
    for each in (sender, reader):
        each.connector.wait(0.0)
        each.connector.shutdown()
