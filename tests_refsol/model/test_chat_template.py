"""Chat templates: the prompt is the one that transformers renders, and a bad template is one line."""

import pickle
from inspect import signature
from itertools import cycle

import pytest

from tiny_llm_engine.models.chat_template import ChatTemplateError, chat_environment
from tiny_llm_engine.models.files import CheckpointError
from tiny_llm_engine.models.tokenizer import load_tokenizer

CONVERSATION = [
    {"role": "system", "content": "Be short & <kind>."},
    {"role": "user", "content": "What is café?\n"},
    {"role": "assistant", "content": "  A place. 北京"},
    {"role": "user", "content": "Where?"},
]
TEMPLATES = {
    "chatml": (
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "trimmed blocks": (
        "{% for m in messages %}\n    {% if m.role == 'user' %}\n  [{{ m.content }}]\n    {% endif %}\n{% endfor %}\n"
    ),
    "special tokens": (
        "{{ bos_token }}{% for m in messages %}{{ m.content | trim }}{{ eos_token }}{% endfor %}{{ sep_token }}"
    ),
    "json": (
        "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}"
        "{{ messages | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=True) }}"
    ),
    "spans for training": (
        "{% for m in messages %}{% if m.role == 'assistant' %}\n  {%- generation %}{% set x = 1 %}[{{ m.content }}]"
        "{% endgeneration %}{% endif %}{% endfor %}{{ x is defined }}"
    ),
    "namespace": (
        "{% set ns = namespace(users=0) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set ns.users = ns.users + 1 %}{% endif %}{% endfor %}{{ ns.users }}"
    ),
    "loop controls": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "absent tools": "{% if tools %}tools{% elif tools is none %}none{% endif %}{{ documents is none }}",
    "methods": "{{ messages[-1].content.split('e')[0].upper() }}{{ messages|length }}{{ messages[0].get('x', '?') }}",
    "slices": "{%- for m in messages[::-1] -%}{{ loop.index0 ~ m.role }}{%- endfor -%}{{ strftime_now('%') }}",
}


PLACES = ["tokenizer_config.json", "named", "chat_template.jinja", "chat_template.json"]
PLACES += ["additional_chat_templates"]


def put(folder, edit, place: str, template: str) -> None:
    """Write the default template of a folder into one of the places where transformers looks for it."""
    edit("tokenizer_config.json", chat_template=...)
    others = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": template}]
    if place == "additional_chat_templates":
        (folder / place).mkdir()
        (folder / place / "default.jinja").write_text(template, encoding="utf-8")
        (folder / place / "tool_use.jinja").write_text("no", encoding="utf-8")
    elif place == "chat_template.jinja":
        (folder / place).write_text(template, encoding="utf-8")
    elif place == "named":
        edit("tokenizer_config.json", chat_template=others)
    else:
        edit(place, chat_template=template)


@pytest.mark.parametrize(("name", "place"), [*zip(TEMPLATES, cycle(PLACES), strict=False)])
@pytest.mark.parametrize("prompt", [True, False])
def test_the_prompt_is_that_of_transformers(folder, edit, place, name, prompt):
    from transformers import PreTrainedTokenizerFast  # takes seconds

    template = TEMPLATES[name]
    tokens = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    edit("tokenizer_config.json", **tokens)
    put(folder, edit, place, template)
    oracle = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), chat_template=template, **tokens
    )
    expected = oracle.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=prompt)
    ours = load_tokenizer(folder)
    assert ours.apply_chat_template(CONVERSATION, add_generation_prompt=prompt) == expected
    assert ours.encode(expected) == oracle.encode(expected, add_special_tokens=False)


def test_the_environment_is_that_of_transformers():
    """Nothing that a template may use is missing, and nothing behaves otherwise by a setting."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    ours, theirs = chat_environment(), _compile_jinja_template("").environment
    for kind in ("filters", "globals", "tests"):
        assert getattr(ours, kind).keys() == getattr(theirs, kind).keys(), kind
    tags = [set().union(*(each.tags for each in env.extensions.values())) for env in (ours, theirs)]
    assert tags[0] == tags[1]
    blocks = ("trim_blocks", "lstrip_blocks", "keep_trailing_newline", "newline_sequence")
    for name in (*blocks, "autoescape", "undefined"):
        assert getattr(ours, name) == getattr(theirs, name), name
    arguments = [signature(env.filters["tojson"]).parameters.values() for env in (ours, theirs)]
    assert [(each.name, each.default) for each in arguments[0]] == [
        (each.name, each.default) for each in arguments[1]
    ]


@pytest.mark.parametrize("place", PLACES)
def test_each_place_is_read_as_transformers_reads_it(folder, edit, place):
    from transformers import PreTrainedTokenizerFast

    put(folder, edit, place, "{{ messages[0].content }}")
    assert load_tokenizer(folder).apply_chat_template(CONVERSATION) == CONVERSATION[0]["content"]
    if place in ("named", "additional_chat_templates"):
        assert load_tokenizer(folder).apply_chat_template(CONVERSATION, tools=[{}]) == "no"
    if place != "chat_template.json":  # from which transformers' processors read
        theirs = PreTrainedTokenizerFast.from_pretrained(folder)
        expected = theirs.apply_chat_template(CONVERSATION, tokenize=False)
        assert load_tokenizer(folder).apply_chat_template(CONVERSATION) == expected


def test_the_file_of_its_own_wins(folder):
    (folder / "chat_template.jinja").write_text("the newer place", encoding="utf-8")
    assert load_tokenizer(folder).apply_chat_template([]) == "the newer place"


def test_a_template_that_is_not_jinja_stops_no_plain_text(folder):
    (folder / "chat_template.jinja").write_text("{{ fine }}\n{% iff %}", encoding="utf-8")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("a")
    with pytest.raises(ChatTemplateError) as caught:
        tokenizer.apply_chat_template(CONVERSATION)
    reason = "chat template line 2: \"Encountered unknown tag 'iff'.\"; download the file again"
    assert str(caught.value) == f"{folder / 'chat_template.jinja'}: {reason}"
    assert caught.value.reason == reason == pickle.loads(pickle.dumps(caught.value)).reason


REFUSES, FAILS = "the chat template refuses these messages: ", "the chat template fails on these messages: "
FAILING = {
    "{{ raise_exception('roles must alternate') }}": f"{REFUSES}'roles must alternate'; change them",
    "{{ raise_exception('two\nlines') }}": rf"{REFUSES}'two\nlines'; change them",
    "{{ messages[9].content }}": f"{FAILS}UndefinedError: ",
    "{{ 1 + 'a' }}": f"{FAILS}TypeError: ",
    "{{ ''.__class__.__mro__ }}": f"{FAILS}SecurityError: ",
    "{{ messages.append(1) }}": f"{FAILS}SecurityError: ",
}


@pytest.mark.parametrize(("template", "message"), FAILING.items())
def test_a_template_that_fails(folder, template, message):
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    tokenizer = load_tokenizer(folder)
    with pytest.raises(ChatTemplateError) as caught:
        tokenizer.apply_chat_template(CONVERSATION)
    assert str(caught.value).startswith(f"{folder / 'chat_template.jinja'}: {message}")
    assert caught.value.reason.startswith(message)
    assert len(str(caught.value).splitlines()) == 1


def test_a_model_without_a_template(folder, edit):
    edit("tokenizer_config.json", chat_template=...)
    with pytest.raises(CheckpointError, match=r"^the model has no chat template \(.*\); give a plain prompt"):
        load_tokenizer(folder).apply_chat_template(CONVERSATION)


@pytest.mark.parametrize("value", [5, [], [{"name": "tool_use", "template": ""}]])
def test_a_template_of_the_wrong_kind(folder, edit, value):
    edit("tokenizer_config.json", chat_template=value)
    tokenizer = load_tokenizer(folder)
    with pytest.raises(
        CheckpointError, match=r"tokenizer_config\.json: chat_template must be a text or a list"
    ):
        tokenizer.apply_chat_template(CONVERSATION)
