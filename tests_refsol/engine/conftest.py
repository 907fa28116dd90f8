"""What the tests of the engine share: a small model on each port."""

import pytest

from support.lockstep import LockstepGroup, LockstepRunner
from tiny_llm_engine.loading import Loading
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.loading import load_network
from tiny_llm_extensions.parallel.division import RankDivision


@pytest.fixture(scope="module", params=installed_backends())
def loaded(request, two_layers):
    """A small model on one port: (port, network, tokenizer)."""
    port = Port("tiny_llm_ref", request.param, "cpu", "float32")
    return port, *load_network(port, two_layers, "week3")


@pytest.fixture(scope="module")
def whole(b, two_layers):
    """A small model on the port `b`: (network, tokenizer)."""
    return load_network(b, two_layers, "week3")


@pytest.fixture
def llm_of_ranks(b):
    """Makes an `LLM` whose steps run on all ranks, in this thread: (llm, group)."""

    def made(folder, size, division, **options):
        group = LockstepGroup(size, b.backend_module)
        divisions = [Loading(division=RankDivision(rank, **division)) for rank in group.ranks]
        loaded = [load_network(b, folder, "week3", each) for each in divisions]
        llm = LLM.of(b, *loaded[0], **options)
        others = [llm.engine.extensions["shapes"].new_runner(network) for network, _ in loaded[1:]]
        llm.engine.runner = LockstepRunner(group, [llm.engine.runner, *others])
        llm.engine.reset_prefix_cache()
        return llm, group

    return made
