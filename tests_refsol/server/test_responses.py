"""`/v1/responses` as the official client meets it: plain text, whole and streamed; what is not there says so."""

from collections.abc import Iterator

import openai
import pytest

from tiny_llm_ref.serving.loop.request_stream import Piece
from tiny_llm_server.openai_api.answer_parts import AnswerDelta, AnswerReader, ThoughtReader
from tiny_llm_server.openai_api.responses import ResponseBody, ResponsesFormat

ENGINE = {"max_model_len": 256, "max_num_seqs": 4, "num_blocks": 64, "block_size": 16, "enforce_eager": True}
ASKED = {"model": "tiny-qwen3", "temperature": 0}


@pytest.fixture(scope="module")
def client(client_with, shipped) -> Iterator[openai.OpenAI]:
    with client_with(shipped, **ENGINE) as made:
        yield made


def chat(client, *messages, **options) -> openai.types.chat.ChatCompletion:
    turns = [{"role": role, "content": text} for role, text in messages]
    return client.chat.completions.create(**ASKED, messages=turns, **options)


def test_an_answer_is_that_of_the_same_conversation(client):
    made = client.responses.create(
        **ASKED, input="What is a KV cache?", instructions="Be short.", max_output_tokens=200
    )
    expected = chat(client, ("system", "Be short."), ("user", "What is a KV cache?"), max_tokens=200)
    assert made.output_text == expected.choices[0].message.content
    assert (made.status, made.incomplete_details, made.error) == ("completed", None, None)
    usage, theirs = made.usage, expected.usage
    assert (usage.input_tokens, usage.output_tokens) == (theirs.prompt_tokens, theirs.completion_tokens)
    again = client.responses.create(
        **ASKED, input=[{"role": "user", "content": "Hi"}, *made.output, {"role": "user", "content": "More"}]
    )
    turns = ("user", "Hi"), ("assistant", made.output_text), ("user", "More")
    expected = chat(client, *turns).choices[0].message.content
    assert again.output_text == expected, "an answer goes back in as it is"


def test_an_answer_that_is_cut_off_says_so(client):
    made = client.responses.create(**ASKED, input="What is a KV cache?", max_output_tokens=2)
    assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert made.usage.output_tokens == 2


@pytest.mark.parametrize("limit", [200, 2])
def test_a_stream_has_the_events_of_the_api(client, limit):
    asked = {**ASKED, "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]}
    whole = client.responses.create(**asked, max_output_tokens=limit)
    events = list(client.responses.create(**asked, max_output_tokens=limit, stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    inner = [kind for kind in kinds if kind != "output_text.delta"]
    end = "completed" if limit == 200 else "incomplete"
    parts = "created in_progress output_item.added content_part.added output_text.done content_part.done"
    assert inner == [*parts.split(), "output_item.done", end]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text
    assert events[-1].response.usage.total_tokens == whole.usage.total_tokens
    if end == "incomplete":  # of which the client's helper knows nothing
        return
    with client.responses.stream(**asked, max_output_tokens=limit) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == text


NOT_THERE = [
    ({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id", "not supported"),
    ({"input": "a", "tools": [{"type": "function", "name": "f"}]}, "tools", "not supported: tools"),
    ({"input": "a", "background": True}, "background", "not supported"),
    ({"input": "a", "max_output_tokens": 0}, "max_output_tokens", "greater than or equal to 1"),
    ({"input": []}, "input", "at least 1 item"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input", "use /v1/chat/completions for"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input", "input[0].content[0]"),
    ({"input": "a", "model": "other"}, "model", "there is no such model"),
    ({"input": "a " * 3000}, "input", "input"),
]


@pytest.mark.parametrize(("body", "param", "says"), NOT_THERE, ids=lambda each: str(each)[:50])
def test_what_is_not_there_is_refused_by_its_name(client, body, param, says):
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as refused:
        client.post("/responses", body={**ASKED, **body}, cast_to=object)
    assert refused.value.param == param and says in refused.value.body["message"], refused.value.body


def test_thoughts_are_an_item_of_their_own():
    form = ResponsesFormat("m", None, ResponseBody(input="a"), AnswerReader(ThoughtReader(True), None))
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    usage["prompt_tokens_details"] = {"cached_tokens": 0}
    answer, thought = form.whole([Piece(0, "hm</think>yes", [], "stop")], usage)["output"]
    assert (answer["type"], answer["content"][0]["text"]) == ("message", "yes")
    assert (thought["type"], thought["content"][0]["text"]) == ("reasoning", "hm")
    assert form.output(AnswerDelta("yes"), False)[0]["id"] == form.message_id
