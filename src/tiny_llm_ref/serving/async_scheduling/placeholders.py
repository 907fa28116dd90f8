"""What can be planned of a request whose next token is still being computed."""

from ..batching.sequence import Sequence


def num_placeholders(sequence: Sequence) -> int:
    """Tokens of the answer that steps in flight will draw: they have a position, and nobody knows their ids.

    Args:
        sequence: a request, of which the first `num_scheduled` tokens are computed or in flight.

    Returns:
        0 while a token that is known is not scheduled; else one for each draw in flight.
    """
    # TASK 4.4.1: the row of the last known token draws the first one, and the row of a placeholder the next one.
    # Nothing is counted in step with the loop: `num_scheduled` and the known tokens say it.
    return max(0, sequence.num_scheduled + 1 - len(sequence.known_tokens))


def must_wait(sequence: Sequence) -> bool:
    """Whether the next draw of a request needs all tokens before it, so that it sits out a step after each draw.

    Returns:
        True with a grammar (`sampling.structured_outputs`), or with a penalty on tokens that were used: their host side
        reads the ids. False for what depends on the position alone: seeds, `min_tokens`, `logit_bias`, filters.
    """
    # TASK 4.4.2: a grammar, or a repetition, presence or frequency penalty that is on. `changes_logits` is too much.
    params = sequence.sampling
    penalties = params.presence_penalty, params.frequency_penalty, params.repetition_penalty - 1
    return params.structured_outputs is not None or any(penalties)


def can_decode_ahead(sequence: Sequence) -> bool:
    """Whether a decode of a request can be planned while tokens of it are in flight.

    Returns:
        True if all that is left to schedule is its last token, known or a placeholder, and an answer that ends
        with the tokens in flight does not reach `max_new_tokens`. A request that has ended, or that has a placeholder
        and must wait, is not ready.
    """
    # TASK 4.4.3: is `num_scheduled` at the last token at least, and past the prompt? Does the limit leave a token?
    # A limit is never found late: the placeholders count like tokens. An end token is: nobody knows it yet.
    placeholders = num_placeholders(sequence)
    if sequence.is_done or (placeholders and must_wait(sequence)):
        return False
    last = max(sequence.num_prompt_tokens, len(sequence.known_tokens) - 1)
    return sequence.num_scheduled >= last and len(sequence.tokens) + placeholders < sequence.max_new_tokens
