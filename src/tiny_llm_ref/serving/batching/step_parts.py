"""What one call of the model has computed, as the parts of its event. Given."""

from collections import abc

from ..requests.events import Part
from .packing import Scheduled
from .sequence import Sequence


def step_parts(call: abc.Sequence[Scheduled], running: abc.Sequence[Sequence]) -> tuple[Part, ...]:
    """The chunks of a call, then its decodes, which have waited for the chunks even in the same call.

    Args:
        call: entries whose tokens are not taken yet.
        running: the requests that run; those of them that are ready to decode have waited for the chunks.
    """
    decodes = tuple(entry.sequence for entry in call if entry.is_decode)
    served = (Part("decode", decodes, len(decodes)),) if decodes else ()
    if len(decodes) == len(call):
        return served
    ready = sum(sequence.is_decoding for sequence in running)
    chunks = [entry for entry in call if not entry.is_decode]
    parts = (Part("chunk", (entry.sequence,), entry.size, entry.start, ready) for entry in chunks)
    return (*parts, *served)
