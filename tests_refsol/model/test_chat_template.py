"""Chat templates: the prompt is the one that transformers renders, and a bad template is one line."""

import pytest
from transformers import PreTrainedTokenizerFast

from tiny_llm_kit.model.files import CheckpointError
from tiny_llm_kit.model.tokenizer import load_tokenizer

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
    "json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "namespace": (
        "{% set ns = namespace(users=0) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set ns.users = ns.users + 1 %}{% endif %}{% endfor %}{{ ns.users }}"
    ),
    "loop controls": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "absent tools": "{% if tools %}tools{% elif tools is none %}none{% endif %}{{ documents is none }}",
    "methods": "{{ messages[-1].content.split('e')[0].upper() }}{{ messages|length }}{{ messages[0].get('x', '?') }}",
    "slices": "{%- for m in messages[::-1] -%}{{ loop.index0 ~ m.role }}{%- endfor -%}{{ strftime_now('%') }}",
}


@pytest.mark.parametrize("place", ["tokenizer_config.json", "named", "chat_template.jinja"])
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
@pytest.mark.parametrize("prompt", [True, False])
def test_the_prompt_is_that_of_transformers(folder, edit, place, template, prompt):
    tokens = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    edit("tokenizer_config.json", chat_template=..., **tokens)
    if place == "chat_template.jinja":
        (folder / place).write_text(template, encoding="utf-8")
    else:
        others = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": template}]
        edit("tokenizer_config.json", chat_template=others if place == "named" else template)
    oracle = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), chat_template=template, **tokens
    )
    expected = oracle.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=prompt)
    ours = load_tokenizer(folder)
    assert ours.apply_chat_template(CONVERSATION, add_generation_prompt=prompt) == expected
    assert ours.encode(expected) == oracle.encode(expected, add_special_tokens=False)


def test_the_file_of_its_own_wins(folder):
    (folder / "chat_template.jinja").write_text("the newer place", encoding="utf-8")
    assert load_tokenizer(folder).apply_chat_template([]) == "the newer place"


def test_a_template_that_is_not_jinja(folder):
    (folder / "chat_template.jinja").write_text("{{ fine }}\n{% iff %}", encoding="utf-8")
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(folder)
    line = f"{folder / 'chat_template.jinja'}: chat template line 2: \"Encountered unknown tag 'iff'.\""
    assert str(caught.value) == f"{line}; download the file again"


FAILING = {
    "{{ raise_exception('roles must alternate') }}": "TemplateError: 'roles must alternate'; check the messages' roles",
    "{{ raise_exception('two\nlines') }}": r"TemplateError: 'two\nlines'; check the messages' roles",
    "{{ messages[9].content }}": "UndefinedError: ",
    "{{ 1 + 'a' }}": "TypeError: ",
    "{{ ''.__class__.__mro__ }}": "SecurityError: ",
    "{{ messages.append(1) }}": "SecurityError: ",
}


@pytest.mark.parametrize(("template", "message"), FAILING.items())
def test_a_template_that_fails(folder, template, message):
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    tokenizer = load_tokenizer(folder)
    with pytest.raises(CheckpointError) as caught:
        tokenizer.apply_chat_template(CONVERSATION)
    assert str(caught.value).startswith(f"{folder / 'chat_template.jinja'}: chat template: {message}")
    assert len(str(caught.value).splitlines()) == 1


def test_a_model_without_a_template(folder, edit):
    edit("tokenizer_config.json", chat_template=...)
    with pytest.raises(CheckpointError, match=r"^the model has no chat template \(.*\); give a plain prompt"):
        load_tokenizer(folder).apply_chat_template(CONVERSATION)


@pytest.mark.parametrize("value", [5, [], [{"name": "tool_use", "template": ""}]])
def test_a_template_of_the_wrong_kind(folder, edit, value):
    edit("tokenizer_config.json", chat_template=value)
    with pytest.raises(
        CheckpointError, match=r"tokenizer_config\.json: chat_template must be a text or a list"
    ):
        load_tokenizer(folder)
