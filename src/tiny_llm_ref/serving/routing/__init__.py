"""Which replica of an engine gets a request: Day 3.7 fills the choice (`choose_replica`)."""

from tiny_llm_extensions.parallel import replica_loads

from .choose_replica import cached_tokens, choose_replica, prefix_hashes


class ReplicaLoads(replica_loads.ReplicaLoads):
    """What a router knows of its replicas; it sends each request where `choose_replica` says. Given.

    Args:
        block_size, answer_estimate, max_blocks: see `tiny_llm_extensions/parallel/replica_loads.py`.
    """

    def __init__(self, block_size: int = 128, *, answer_estimate: int = 256, max_blocks: int = 4096):
        sizes = {"answer_estimate": answer_estimate, "max_blocks": max_blocks}
        super().__init__(choose_replica, prefix_hashes, cached_tokens, block_size, **sizes)
