"""Tools, thoughts and further fields of conversations, as the official client meets them."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace

import openai
import pytest
from pydantic import BaseModel, Field

from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.models.chat_template import ChatTemplate
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.loading import load_network
from tiny_llm_server.background_server import BackgroundServer
from tiny_llm_server.openai_api.answer_parts import AnswerReader, ThoughtReader
from tiny_llm_server.openai_api.finite_schema import finite
from tiny_llm_server.openai_api.schemas import ChatBody
from tiny_llm_server.openai_api.tool_calls import FORMATS, CallReader, forced_calls, format_of
from tiny_llm_server.openai_api.tool_use import ToolUse
from tiny_llm_server.server import ServerOptions, create_app

from .asking import client_of

ENGINE = {"max_model_len": 1024, "max_num_seqs": 4, "num_blocks": 256, "block_size": 16}
ENGINE |= {"enforce_eager": True}
HELLO = [{"role": "user", "content": "Hello"}]
# In the manner of Qwen's templates: tools first, calls as JSON between marks, results as a role, thoughts if wanted.
TEMPLATE = """
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Write <tool_call> around calls.<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content is defined %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}
{%- if opens_thought %}<think>
{% endif %}{{ reasoning_effort }}{% endif %}"""


def function(name: str, **fields) -> dict:
    """A function as a tool, or as the one that must be called."""
    return {"type": "function", "function": {"name": name, **fields}}


def object_of(**properties) -> dict:
    """The schema of an object that has all of these properties."""
    return {"type": "object", "properties": properties, "required": [*properties]}


PLACE, DAYS = {"enum": ["Ulm", "Bonn"]}, {"type": "integer", "maximum": 9, "minimum": 1}
WEATHER = function("weather", description="of a city", parameters=object_of(city=PLACE, days=DAYS))
CLOCK = function("clock")
FORCED = {"tools": [WEATHER], "tool_choice": "required"}


@pytest.fixture(scope="module")
def server(two_layers) -> Iterator[BackgroundServer]:
    port = Port("tiny_llm_ref", installed_backends()[-1], "cpu", "float32")

    def open_llm() -> LLM:
        network, tokenizer = load_network(port, two_layers, "week3")
        tokenizer._chat_template = ChatTemplate({"default": TEMPLATE}, ROOT / "chat_template.jinja", {})
        return LLM.of(port, network, tokenizer, **ENGINE)

    with BackgroundServer(create_app(open_llm, ServerOptions())) as started:
        yield started


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    with client_of(server) as made:
        yield made


def create(client, **body):
    """An answer to Hello, of up to 200 tokens."""
    return client.chat.completions.create(
        **{"model": "tiny-qwen3", "messages": HELLO, "max_tokens": 200, **body}
    )


def asked(client, stream=False, **body):
    """The choice of an answer; from a stream it is put together as its client does."""
    with_body = {"model": "tiny-qwen3", "messages": HELLO, "temperature": 0, "max_tokens": 200, **body}
    if not stream:
        return client.chat.completions.create(**with_body).choices[0]
    with client.chat.completions.stream(**with_body) as events:
        return events.get_final_completion().choices[0]


def calls_of(choice) -> list[tuple[str, dict]]:
    functions = [call.function for call in choice.message.tool_calls or []]
    return [(function.name, json.loads(function.arguments)) for function in functions]


def prompt_of(client, **body) -> str:
    ids = client.post("../tokenize", body=body, cast_to=object)["tokens"]
    return client.post("../detokenize", body={"tokens": ids}, cast_to=object)["prompt"]


# ---- calls that are forced


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", function("weather")], ids=str)
def test_a_forced_call_has_valid_arguments(client, choice, stream):
    found = asked(client, stream, tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False)
    [(name, arguments)] = calls_of(found)
    assert name == "weather" and arguments.keys() == {"city", "days"}
    assert arguments["city"] in ("Ulm", "Bonn") and 1 <= arguments["days"] <= 9
    assert found.message.content is None
    [call] = found.message.tool_calls
    assert call.id.startswith("call_") and call.type == "function"
    assert found.finish_reason == ("tool_calls" if choice == "required" else "stop"), "as OpenAI has it"


def test_several_answers_have_their_own_calls(client):
    forced = {**FORCED, "tools": [WEATHER, CLOCK], "parallel_tool_calls": False}
    made = create(client, **forced, n=3, seed=1)
    names = [[name for name, _ in calls_of(choice)] for choice in made.choices]
    assert all(len(each) == 1 and each[0] in ("weather", "clock") for each in names)
    assert len({choice.message.tool_calls[0].id for choice in made.choices}) == 3


TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
COUNTRY = {"type": "object", "properties": {"c": {"type": ["string", "null"]}}}
UNBOUNDED = object_of(
    text=TEXT,
    count=WHOLE,
    tags={"type": "array", "items": TEXT},
    place={"anyOf": [{"type": "null"}, COUNTRY]},
)
# As pydantic writes models in models, dicts, floats, Any, paths and addresses; and a name without a property.
NESTED = object_of(
    where={"$ref": "#/$defs/Place"},
    share={"type": "number"},
    rest={"title": "Any", "type": "object"},
    counts={"type": "object", "additionalProperties": WHOLE},
    free={"title": "Free"},
    list={"type": "array", "items": {}},
    last=True,
    mail={"type": "string", "format": "email"},
    file={"type": "string", "format": "path"},
)
NESTED["required"].append("unnamed")
NESTED["$defs"] = {"Place": object_of(city=TEXT)}


@pytest.mark.parametrize(
    ("schema", "options"),
    [(UNBOUNDED, {"temperature": 1.5}), (UNBOUNDED, {"max_tokens": None}), (NESTED, {})],
)
def test_arguments_without_limits_of_their_own_come_to_an_end(client, schema, options):
    """A model of some million parameters never closes a string that it may write on."""
    tools = [function("note", parameters=schema)]
    found = asked(client, tools=tools, tool_choice="required", parallel_tool_calls=False, seed=1, **options)
    assert found.finish_reason == "tool_calls", found
    assert [arguments.keys() for _, arguments in calls_of(found)] == [set(schema["required"])]


class Place(BaseModel):
    """Numbers of each kind, texts, lists and an object, as pydantic writes them."""

    name: str
    number: int
    height: float | None
    corners: list[tuple[float, float]]


class Journey(BaseModel):
    title: str
    days: int
    places: list[Place] = Field(min_length=1)


@pytest.fixture(scope="module")
def eager(server) -> dict:
    """A model that never ends what it may write on: the bias of the digits."""
    tokenizer = server.app.state.service.engine.tokenizer
    return {str(token): 100 for digit in "123" for token in tokenizer.encode(digit, add_special_tokens=False)}


def test_a_response_format_comes_to_an_end(client, eager):
    """By `parse`, as langchain's `json_schema` sends it, and any object; in a few tokens, and where none is given."""
    asked = {"model": "tiny-qwen3", "messages": HELLO, "logit_bias": eager, "seed": 1}
    parsed = client.chat.completions.parse(**asked, response_format=Journey, max_tokens=300).choices[0]
    assert parsed.message.parsed.days >= 1 and parsed.message.parsed.places
    schema = {"title": "Journey", **Journey.model_json_schema()}
    named = {"name": "Journey", "description": "a journey", "strict": True, "schema": schema}
    for named_schema, check in ((named, Journey.model_validate), ({"schema": {"type": "number"}}, float)):
        form = {"type": "json_schema", "json_schema": named_schema}
        limit = {"max_tokens": 300} if named_schema is named else {}
        [made] = client.chat.completions.create(**asked, **limit, response_format=form).choices
        assert made.finish_reason == "stop" and check(json.loads(made.message.content)), made
    for form in ({"response_format": {"type": "json_object"}}, {"guided_json": {"type": "integer"}}):
        [made] = client.completions.create(
            model="tiny-qwen3", prompt="a", logit_bias=eager, seed=1, max_tokens=300, extra_body=form
        ).choices
        assert made.finish_reason == ("stop" if "response_format" in form else "length"), made


def test_a_response_format_without_bounds_is_the_clients_own(server, client, eager, monkeypatch):
    service = server.app.state.service
    monkeypatch.setattr(service, "options", replace(service.options, bounded_response_format=False))
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model="tiny-qwen3", messages=HELLO, logit_bias=eager, response_format=Journey, max_tokens=100
        )


def test_limits_leave_a_schema_its_own_and_allow_nothing_new():
    properties = {
        "a": {"type": "string", "maxLength": 3},
        "b": {"enum": ["x"]},
        "c": {"type": "string", "minLength": 900},
        "d": {"type": "array", "minItems": 99, "items": {"type": "integer", "minimum": 0, "maximum": 9}},
        "e": {"$ref": "#/$defs/T"},
        "f": {"type": "integer", "minimum": 10**16},
        "g": False,
    }
    schema = {"type": "object", "properties": properties, "$defs": {"T": {**TEXT, "pattern": "x+"}}}
    made = finite(schema, 100)["properties"]
    assert made["a"] == schema["properties"]["a"] and made["b"] == schema["properties"]["b"]
    assert made["c"]["maxLength"] >= 900 and made["d"]["maxItems"] >= 99
    assert made["d"]["items"] == schema["properties"]["d"]["items"] and made["g"] is False
    assert made["f"]["maximum"] >= 10**16 and finite(schema, 100)["$defs"] == schema["$defs"]
    assert finite(schema, 3) and finite({"type": "object", "maxProperties": 0}, 5)["maxProperties"] == 0
    keys = {"type": "object", "patternProperties": {"^x": {"const": 1}}}
    keys["additionalProperties"] = {"type": "null"}
    closed = {"type": "object", "additionalProperties": False}
    assert finite(keys, 100) == keys and finite(closed, 9) == closed
    part = {"type": "object", "properties": {"a": {"const": 1}}}
    both = {"allOf": [part, {"$ref": "#/$defs/B"}], "$defs": {"B": part}}
    for whole in (both, {**part, "anyOf": [{"required": ["a"]}]}):
        limited = finite(whole, 100)
        assert limited.get("allOf") == whole.get("allOf") and limited.get("anyOf") == whole.get("anyOf")
        assert limited.get("$defs") == whole.get("$defs"), "what one part closes the others could not have"
    wrong = {"type": [{}, "integer"]}  # refused later, with the reason
    assert finite(wrong, 9)["type"] == wrong["type"]
    nested = {"type": "string"}
    for _ in range(300):
        nested = {"type": "array", "items": nested}
    assert finite(nested, 100)["maxItems"] == 4


def test_an_answer_of_many_tokens_has_no_other_limits_than_the_schema(server):
    tokenizer = server.app.state.service.engine.tokenizer
    body = ChatBody.model_validate({"messages": HELLO, "tools": [WEATHER, CLOCK], "tool_choice": "required"})
    uses = ToolUse.of(body, tokenizer, None)
    few, many = (uses.grammar(tokenizer, room).splitlines()[0] for room in (1000, 10_000))
    assert "{0,3}" in few and few.replace("{0,3}", "*") == many


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("only_one", [True, False])
def test_what_is_forced_is_what_the_reader_of_the_format_reads(server, name, only_one):
    """A grammar, and a text in it that the reader takes apart."""
    from llguidance import LLMatcher, LLTokenizer

    tokenizer, form = server.app.state.service.engine.tokenizer, FORMATS[name]
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    functions = {'f"\u00fc': schema, "g": {"type": "object"}}
    grammar = forced_calls(form, functions, 1 if only_one else None, tokenizer.token_id)
    call = f'{{"name": {json.dumps(chr(102) + chr(34) + chr(252))}, "{form.arguments}": {{"a": "x"}}}}'
    between = {"hermes": "\n</tool_call>\n<tool_call>\n", "mistral": ", ", "llama3_json": "; "}[name]
    begin = "" if form.bare else form.begin + form.opens
    for text, count in ((call, 1), (call + between + call, 2)):
        text = begin + text + form.closes + form.end
        ends = sorted(tokenizer.eos_token_ids)
        vocabulary = LLTokenizer(tokenizer.to_json(), n_vocab=tokenizer.vocab_size, eos_token=ends)
        matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = tokenizer.encode(text)
        fits = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
        assert fits is (count == 1 or not only_one)
        assert read(text, name).calls == [('f"\u00fc', '{"a": "x"}')] * count


def test_the_mark_of_a_call_may_be_one_token(server):
    tokens = {"<tool_call>": 7, "</tool_call>": 8}
    grammar = forced_calls(FORMATS["hermes"], {"f": {"type": "object"}}, 1, tokens.get)
    assert grammar.splitlines()[0] == 'start: <[7]> "\\n" one "\\n" <[8]>'


# ---- calls that the model chooses


WRITTEN = (
    'Well.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm", "days": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)


def saying(text) -> dict:
    """Fields of a request whose answer is this text."""
    return {"extra_body": {"structured_outputs": {"choice": [text]}}}


@pytest.mark.parametrize("stream", [False, True])
def test_calls_that_the_model_writes(client, stream):
    found = asked(client, stream, tools=[WEATHER, CLOCK], **saying(WRITTEN))
    assert calls_of(found) == [("weather", {"city": "Ulm", "days": 2}), ("clock", {})]
    assert (found.message.content, found.finish_reason) == ("Well.", "tool_calls")
    assert len({call.id for call in found.message.tool_calls}) == 2
    found = asked(client, stream, tools=[WEATHER], parallel_tool_calls=False, **saying(WRITTEN))
    assert [name for name, _ in calls_of(found)] == ["weather"]


@pytest.mark.parametrize(("tools", "stream"), [({}, False), ({**FORCED, "tool_choice": "none"}, True)])
def test_without_tools_nothing_is_a_call(client, tools, stream):
    found = asked(client, stream, **tools, **saying(WRITTEN))
    assert (found.message.content, found.message.tool_calls, found.finish_reason) == (WRITTEN, None, "stop")


def test_a_stream_of_a_call_has_the_deltas_of_openai(client):
    chunks = create(client, tools=[WEATHER, CLOCK], stream=True, **saying(WRITTEN))
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    heads = [delta for delta in deltas if delta.id]
    named = [(0, "function", "weather"), (1, "function", "clock")]
    assert [(head.index, head.type, head.function.name) for head in heads] == named
    arguments = {0: "", 1: ""}
    for delta in deltas:
        arguments[delta.index] += delta.function.arguments
    assert arguments == {0: '{"city": "Ulm", "days": 2}', 1: "{}"}
    first = [delta.index for delta in deltas].index(1)
    assert first > 2 and {delta.index for delta in deltas[:first]} == {0}, "arguments come in pieces"


@pytest.mark.parametrize("limit", [1, 12])
def test_a_forced_call_that_is_cut_off_ends_for_its_length_and_is_no_content(client, limit):
    body = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": limit}
    found = asked(client, **body)
    assert found.finish_reason == "length" and not found.message.content and not found.message.tool_calls
    chunks = create(client, stream=True, **body)
    assert not any(chunk.choices[0].delta.content for chunk in chunks)


def test_calls_and_their_results_go_back_in(client):
    found = asked(client, tools=[WEATHER], **saying(WRITTEN))
    answer = found.message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": found.message.tool_calls[0].id, "content": "rain"}
    assert asked(client, messages=[*HELLO, answer, result], tools=[WEATHER], max_tokens=2).finish_reason
    prompt = prompt_of(client, messages=[*HELLO, answer, result], tools=[WEATHER])
    assert json.dumps(WEATHER) in prompt
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm", "days": 2}}\n</tool_call>'
    assert "Well." in prompt and call in prompt and "<|im_start|>tool\nrain<|im_end|>" in prompt
    bare = {**answer, "content": None}
    assert "None" not in prompt_of(client, messages=[*HELLO, bare, result], tools=[WEATHER])


@pytest.mark.parametrize("written", ["", " ", "null", "{}"])
def test_a_call_without_arguments_goes_back_in_as_an_object(client, written):
    """Clients send back what they got, and templates write the items of an object."""
    call = {"id": "c", **function("clock", arguments=written)}
    messages = [*HELLO, {"role": "assistant", "tool_calls": [call]}]
    assert '"arguments": {}}' in prompt_of(client, messages=messages, tools=[CLOCK])


WRONG_TOOLS = [
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": function("g")}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": "maybe"}, "tool_choice"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tools": [{**WEATHER, "type": "retrieval"}]}, "tools"),
    ({"tools": [CLOCK] * 129}, "tools"),
    ({**FORCED, "response_format": {"type": "json_object"}}, "tool_choice"),
    ({**FORCED, "tools": [function("f", parameters={"type": "strange"})]}, "tools"),
]


@pytest.mark.parametrize(("body", "param"), WRONG_TOOLS, ids=lambda each: str(each)[:60])
def test_tools_that_cannot_be_are_refused_by_name(client, body, param):
    with pytest.raises(openai.BadRequestError) as refused:
        asked(client, **body)
    assert refused.value.param == param and "\n" not in refused.value.body["message"]


# ---- thoughts, and variables of the template


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("shown", [True, False])
def test_thoughts_come_apart_from_the_answer(client, stream, shown):
    body = saying("<think>\nhm, yes\n</think>\n\nNo.")
    body["extra_body"]["include_reasoning"] = shown
    found = asked(client, stream, **body)
    assert found.message.content == "No." and found.finish_reason == "stop"
    assert found.message.model_extra.get("reasoning_content") == ("hm, yes" if shown else None)


def test_a_prompt_that_ends_in_a_thought_is_followed_by_the_rest_of_it(client):
    found = asked(client, max_tokens=5, extra_body={"chat_template_kwargs": {"opens_thought": True}})
    assert found.message.content is None and found.message.model_extra["reasoning_content"]
    form = {"chat_template_kwargs": {"opens_thought": True}, "structured_outputs": {"choice": ["yes"]}}
    assert asked(client, extra_body=form).message.content == "yes"


def test_variables_of_the_template(client):
    opens = prompt_of(client, messages=HELLO, chat_template_kwargs={"enable_thinking": False})
    assert opens.endswith("<|im_start|>assistant\n<think></think>")
    hello = prompt_of(client, messages=HELLO, chat_template_kwargs={"messages": [], "self": 1})
    assert hello.count("Hello") == 1

    def length(**body) -> int:
        return create(client, max_tokens=1, **body).usage.prompt_tokens

    assert length(reasoning_effort="none") > length() < length(reasoning_effort="high")
    thought = {"role": "assistant", "content": "b", "reasoning_content": "hm"}
    assert "<think>hm</think>b" in prompt_of(client, messages=[*HELLO, thought, *HELLO])


# ---- the reader of answers


class Read:
    """What a reader has made of a text."""

    def __init__(self):
        self.content = self.thought = ""
        self.heads, self.arguments = [], []

    def add(self, delta) -> None:
        self.content, self.thought = self.content + delta.content, self.thought + delta.reasoning
        for call in delta.calls:
            if "id" in call:
                assert call["index"] == len(self.heads)
                self.heads.append(call["function"]["name"])
                self.arguments.append("")
            self.arguments[call["index"]] += call["function"]["arguments"]

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Names and arguments."""
        return list(zip(self.heads, self.arguments, strict=True))


def read(text, form="hermes", begins_inside=None, sizes=None) -> Read:
    """What is read of a text, in one piece or in random ones."""
    thoughts = None if begins_inside is None else ThoughtReader(begins_inside)
    reader, found, end = AnswerReader(thoughts, CallReader(FORMATS[form])), Read(), 0
    while end < len(text):
        begin, end = end, end + (len(text) if sizes is None else sizes.choice((1, 1, 2, 3, 7)))
        found.add(reader.add(text[begin:end], end >= len(text)))
    return found


QUOTES = r'{"a": "x </tool_call> {\" y", "b": [1, {"c": null}]}'
IN_A_LIST = (
    r'<tool_call>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": "{\"b\": 2}"}]</tool_call>'
)
TWO = '<tool_call>{"name": "f"}</tool_call> <tool_call>{"name": "g", "parameters": null}</tool_call>\n'
TEXTS = [  # the text, what is content of it, and the arguments of each call
    ("Hello <b>", "Hello <b>", {}),
    (f'<tool_call>\n{{"name": "f", "arguments": {QUOTES}}}\n</tool_call>', "", {"f": QUOTES}),
    ('a\n<tool_call>{"arguments": {"z":  1} , "name": "g"}</tool_call>', "a", {"g": '{"z":  1}'}),
    (IN_A_LIST, "", {"f": "{}", "g": '{"b": 2}'}),
    (TWO, "", {"f": "{}", "g": "{}"}),
    ("<tool_call>\nfoo\n</tool_call> end", "<tool_call>\nfoo\n</tool_call> end", {}),
    ('<tool_call>{"name": 3}</tool_call>x', '<tool_call>{"name": 3}</tool_call>x', {}),
    ('<tool_call>{"name": "f" </tool_call>x', '<tool_call>{"name": "f" </tool_call>x', {}),
    ('<tool_call>{"name": "f', '<tool_call>{"name": "f', {}),
    ('<tool_call>{"name": "f", "arguments": {"a": "b ', "", {"f": '{"a": "b '}),
    ("a <tool_", "a <tool_", {}),
    (" a\n", " a\n", {}),
]
MISTRAL = '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}}, {"name": "g"}]'
OTHER_FORMATS = [
    ("llama3_json", '{"name": "f", "parameters": {"a": 1}}', "", {"f": '{"a": 1}'}),
    ("llama3_json", '{"answer": 3}', '{"answer": 3}', {}),
    ("llama3_json", 'hi {"name": "f"}', 'hi {"name": "f"}', {}),
    ("llama3_json", '<|python_tag|>{"name": "f"}; {"name": "g"}', "", {"f": "{}", "g": "{}"}),
    ("mistral", MISTRAL, "", {"f": '{"a": "]"}', "g": "{}"}),
    ("mistral", '[TOOL_CALLS] [{"name": "f"}] so', "so", {"f": "{}"}),
]


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"), [("hermes", *each) for each in TEXTS] + OTHER_FORMATS, ids=str
)
def test_a_text_is_read_alike_however_it_comes(form, text, content, calls):
    for sizes in (None, *map(random.Random, range(20))):
        found = read(text, form, sizes=sizes)
        assert (found.content, found.calls) == (content, [*calls.items()])


@pytest.mark.parametrize(
    ("begins_inside", "text", "thought", "content"),
    [
        (False, "<think>\nhm, yes\n\n</think>\n\nThe answer \n", "hm, yes", "The answer \n"),
        (True, "hm</think>ok", "hm", "ok"),
        (True, "never", "never", ""),
        (False, "<think> a </thinker></think>", "a </thinker>", ""),
        (False, "\n <thin", "", "\n <thin"),
        (False, "plain <think>", "", "plain <think>"),
        (False, "<think></think>x", "", "x"),
    ],
)
def test_thoughts_are_read_alike_however_they_come(begins_inside, text, thought, content):
    for sizes in (None, *map(random.Random, range(20))):
        found = read(text, begins_inside=begins_inside, sizes=sizes)
        assert (found.thought, found.content) == (thought, content)


def test_the_template_says_how_its_model_writes_calls():
    assert format_of(TEMPLATE) is format_of("") is FORMATS["hermes"]
    assert format_of("… [TOOL_CALLS] …") is FORMATS["mistral"]
    assert format_of(TEMPLATE, "llama3_json") is FORMATS["llama3_json"]
    assert len(FORMATS["mistral"].new_id()) == 9
