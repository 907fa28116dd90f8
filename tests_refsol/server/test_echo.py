"""`echo` of completions, with log-probabilities: what lm-eval asks for. Oracle: `prompt_logprobs` of the library."""

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace

import openai
import pytest

from tiny_llm_engine.loop_state import Piece
from tiny_llm_engine.packed_model import Sampled
from tiny_llm_extensions.llm import LLM
from tiny_llm_ref import SamplingParams
from tiny_llm_server.openai_api.completion_format import CompletionFormat, Echo
from tiny_llm_server.openai_api.formats import FEW
from tiny_llm_server.openai_api.http_responses import json_parts

ENGINE = {"max_model_len": 256, "max_num_seqs": 4, "num_blocks": 64, "block_size": 16, "enforce_eager": True}
TEXT = "Chunked prefill, é and \U0001f600: what is it?"
ASKED = {"model": "tiny-qwen3", "temperature": 0}


@pytest.fixture(scope="module")
def client(client_with) -> Iterator[openai.OpenAI]:
    with client_with(**ENGINE) as made:
        yield made


def expected(loaded, ids, count=2):
    """The library's log-probabilities of a prompt's tokens."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=count)
    [output] = LLM.of(*loaded, **ENGINE).generate([ids], params, use_tqdm=False)
    both = zip(ids, output.prompt_logprobs, strict=True)
    return [None if best is None else best[token].logprob for token, best in both]


@pytest.mark.parametrize("as_ids", [False, True])
def test_log_probabilities_of_the_prompt_are_those_of_the_library(client, loaded, as_ids):
    """As lm-eval reads them: one token is made, and all before it are the prompt's."""
    ids = loaded[2].encode(TEXT)
    [choice] = client.completions.create(
        **ASKED, prompt=ids if as_ids else TEXT, max_tokens=1, logprobs=2, echo=True, seed=1
    ).choices
    found = choice.logprobs
    assert choice.text.startswith(TEXT) and len(found.tokens) == len(ids) + 1
    assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
    assert found.token_logprobs[1:-1] == pytest.approx(expected(loaded, ids)[1:], abs=1e-4)
    for token, value, best in zip(
        found.tokens[1:], found.token_logprobs[1:], found.top_logprobs[1:], strict=True
    ):
        assert best[token] == value and len(best) in (2, 3)
    whole = [place for place, token in enumerate(found.tokens) if "\ufffd" not in token]
    assert all(choice.text[found.text_offset[place] :].startswith(found.tokens[place]) for place in whole)
    assert found.text_offset[-1] == len(TEXT) and found.text_offset == sorted(found.text_offset)


@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_stream_begins_with_the_prompt(client, logprobs):
    body = {**ASKED, "prompt": [TEXT, "Hello"], "n": 2, "max_tokens": 4, "logprobs": logprobs, "echo": True}
    whole = {choice.index: choice for choice in client.completions.create(**body).choices}
    texts, tokens = dict.fromkeys(whole, ""), {index: [] for index in whole}
    for chunk in client.completions.create(**body, stream=True):
        [choice] = chunk.choices
        texts[choice.index] += choice.text
        tokens[choice.index] += choice.logprobs.tokens if choice.logprobs else []
    assert texts == {index: choice.text for index, choice in whole.items()}
    assert texts[1].startswith(TEXT) and texts[2].startswith("Hello")
    assert logprobs is None or tokens == {index: choice.logprobs.tokens for index, choice in whole.items()}


def test_the_prompt_alone(client, loaded):
    made = client.completions.create(**ASKED, prompt=TEXT, max_tokens=0, logprobs=1, echo=True)
    [choice] = made.choices
    assert (choice.text, choice.finish_reason, made.usage.completion_tokens) == (TEXT, "length", 0)
    assert len(choice.logprobs.tokens) == len(loaded[2].encode(TEXT)) == made.usage.prompt_tokens


def test_an_engine_that_pads_its_steps_says_why_it_has_none(client_with):
    with client_with(**ENGINE, bucketing_strategy="exponential") as client:
        asked = {**ASKED, "prompt": "a", "max_tokens": 1, "echo": True}
        assert client.completions.create(**asked).choices[0].text.startswith("a")
        says = "echo needs steps of any number of sampled rows"
        with pytest.raises(openai.BadRequestError, match=says) as refused:
            client.completions.create(**asked, logprobs=1)
        assert refused.value.param == "echo"


def test_a_prompt_is_written_once_for_all_its_answers_and_others_are_served_meanwhile(loaded):
    ids = loaded[2].encode(TEXT) * 20
    best = [Sampled(id, -1.0, {id: -1.0, 5: -2.0}) for id in ids]
    reads, turns = [], []
    answers = [SimpleNamespace(prompt_sampled=dict(enumerate(best)))]
    echo = Echo([TEXT * 20], [ids], 3, lambda: reads.append(1) or answers)
    form = CompletionFormat("m", loaded[2], True, True, echo)
    pieces = [Piece(n, "a", best[:2]) for n in range(3)]

    async def others():
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    async def write():
        waiting = asyncio.create_task(others())
        for piece in pieces:
            await form.write_logprobs(piece)
        waiting.cancel()

    asyncio.run(write())
    assert len(reads) == 1, "read for every answer"
    assert len(turns) >= len(ids) // FEW, "nothing else ran while the prompt was written"
    parts = json_parts(form.whole(pieces, {}))
    distinct = {id(part): len(part) for part in parts}
    assert sum(distinct.values()) < sum(map(len, parts)) / 2, "a copy for every answer"
    found = [choice["logprobs"] for choice in json.loads(b"".join(parts))["choices"]]
    assert found[0]["tokens"] == [loaded[2].text_of(id) for id in [*ids, *ids[:2]]]
    assert found[0] == found[1] == found[2] and found[0]["token_logprobs"] == [None, *[-1.0] * (len(ids) + 1)]
