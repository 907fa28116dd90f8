"""Sampling parameters: what is out of range is refused, and Week 2's requests use each of them or refuse it by name."""

from dataclasses import fields

import numpy as np
import pytest

from support.fake_model import ByteTokenizer, FakeModel
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.sampling import WEEK_3
from tiny_llm_engine.solutions.port import Port
from tiny_llm_ref.serving import Request, SamplingParams, StructuredOutputsParams

# Every parameter with a value that is not its default.
CHANGED = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "max_tokens": 3,
    "stop": ("x",),
    "seed": 7,
    "n": 2,
    "logprobs": 1,
    "ignore_eos": True,
    "sample_index": 1,
    "stop_token_ids": (3,),
    "min_tokens": 2,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {3: 1.5},
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "structured_outputs": StructuredOutputsParams(regex="a+"),
    "prompt_logprobs": 1,
    "extra_args": {"kv_transfer_params": {"do_remote_decode": True}},
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (-1, 1e-9, float("inf"), float("nan"), "warm", None, True)),
        *(("top_p", value) for value in (0, -0.1, 1.1, float("nan"), "all")),
        *(("top_k", value) for value in (-2, 2.5, True)),
        *(("max_tokens", value) for value in (0, -3, 1.5)),
        *(("stop", value) for value in (["a", ""], [3], 3)),
        *(("seed", value) for value in (-1, 2**63, 0.5)),
        *(("n", value) for value in (0, None, 1.5)),
        *((name, value) for name in ("logprobs", "prompt_logprobs") for value in (-2, 0.5, True)),
        *(("ignore_eos", value) for value in (1, "yes", None)),
        *(("sample_index", value) for value in (-1, None)),
        *(("stop_token_ids", value) for value in (3, [-1], [1.5], ["a"], [True])),
        *(("min_tokens", value) for value in (-1, 1.5, None, 17)),
        *(("min_p", value) for value in (-0.1, 1.1, float("nan"), None)),
        *(("presence_penalty", value) for value in (-2.1, 2.1, "a", None)),
        *(("frequency_penalty", value) for value in (-2.1, 2.1, float("nan"))),
        *(("repetition_penalty", value) for value in (0, -1, float("inf"), float("nan"), None)),
        *(
            ("logit_bias", value)
            for value in ({3: 101}, {3: float("nan")}, {"3": 1}, {-1: 1}, [3], {3: None})
        ),
        *((name, 1) for name in ("include_stop_str_in_output", "skip_special_tokens", "structured_outputs")),
    ],
)
def test_what_is_out_of_range_is_one_line_with_its_name(name, value):
    with pytest.raises(ValueError, match=f"^{name} is ") as refused:
        SamplingParams(**{name: value})
    assert "\n" not in str(refused.value)


def test_the_smallest_and_the_largest_values_are_taken():
    SamplingParams(1e-6, top_p=1, top_k=0, max_tokens=1, stop=[], seed=2**63 - 1, n=1, logprobs=0)


@pytest.mark.parametrize(("stop", "words"), [(None, ()), ("a", ("a",)), (["a", "bc"], ("a", "bc")), ((), ())])
def test_stop_strings_become_a_tuple(stop, words):
    assert SamplingParams(stop=stop).stop == words
    assert hash(SamplingParams(stop=stop)) == hash(SamplingParams(stop=words))


def test_every_parameter_is_in_this_table():
    assert list(CHANGED) == [each.name for each in fields(SamplingParams)]
    assert all(SamplingParams(**{name: CHANGED[name]}).changed([name]) for name in CHANGED)


def test_defaults_that_vllm_has_too():
    """No parameters are 16 tokens, `max_tokens=None` is the context, and -1 turns top-k off."""
    assert SamplingParams().max_tokens == 16 and SamplingParams(max_tokens=None).max_tokens is None
    assert SamplingParams(top_k=-1) == SamplingParams() and not SamplingParams().changes_logits


@pytest.mark.parametrize(
    "forms",
    [
        {},
        {"json": "{}", "regex": "a"},
        {"json_object": False},
        {"regex": 3},
        {"choice": []},
        {"choice": "ab"},
        {"choice": ["a", ""]},
        {"choice": ["a"], "grammar": "start: /a/"},
        {"grammar": ["start: /a/"]},
    ],
    ids=str,
)
def test_structured_outputs_have_exactly_one_form(forms):
    with pytest.raises(ValueError, match=r"^structured_outputs "):
        StructuredOutputsParams(**forms)


@pytest.mark.parametrize("name", ["regex", "json", "grammar"])
def test_an_empty_form_is_refused_as_what_it_is(name):
    with pytest.raises(ValueError, match=f"^structured_outputs is wrong: {name} is empty: give a text"):
        StructuredOutputsParams(**{name: ""})


@pytest.mark.parametrize("other", [{"min_tokens": 1}, {"ignore_eos": True}])
def test_structured_outputs_end_the_answer_themselves(other):
    with pytest.raises(ValueError, match=f"^{next(iter(other))} is .*: structured_outputs decides"):
        SamplingParams(structured_outputs=CHANGED["structured_outputs"], **other)


def heard(**params) -> tuple:
    """The answer to one prompt of Week 2, and what the model was asked for."""
    model = FakeModel({"Hi": "abcxyz"})
    request = Request(model, ByteTokenizer(), "Hi", sampling=SamplingParams(**params))
    request.prefill()
    drawn = model.calls[0].sampling
    return (
        request.text,
        request.finish_reason,
        request.max_new_tokens,
        drawn.temperature,
        drawn.top_p,
        drawn.top_k,
    )


@pytest.fixture(params=["numpy", *installed_backends()])
def of(request):
    """Makes arrays of one library."""
    if request.param == "numpy":
        return np.asarray
    return Port("tiny_llm_ref", request.param, "cpu").backend_module.to_array


def test_numbers_of_array_libraries_are_numbers_and_bools_are_none(of):
    """They are Python's afterwards: comparable and hashable."""
    given = {name: value for name, value in CHANGED.items() if type(value) in (int, float)}
    made = SamplingParams(**{name: of(value)[()] for name, value in given.items()})
    for name, value in given.items():
        assert type(getattr(made, name)) is type(value)
        assert getattr(made, name) == pytest.approx(value, rel=1e-6)
        with pytest.raises(ValueError, match=f"^{name} is "):
            SamplingParams(**{name: of(True)[()]})
    lists = SamplingParams(stop_token_ids=of([3, 5]), logit_bias={of(3)[()].item(): of(1.5)[()]})
    assert lists == SamplingParams(stop_token_ids=(3, 5), logit_bias={3: 1.5})
    assert hash(lists) == hash(SamplingParams(stop_token_ids=(3, 5)))
    for name, value in (("stop_token_ids", of([True])), ("logit_bias", {3: of(True)[()]})):
        with pytest.raises(ValueError, match=f"^{name} is "):
            SamplingParams(**{name: value})


def test_week_2_reads_ids_of_array_libraries(of):
    for made in (of, lambda ids: [*of(ids)]):
        request, wrong = (Request(FakeModel({}), ByteTokenizer(), made(ids)) for ids in ([3, 5], [True]))
        assert request.prompt_tokens == [3, 5] and {*map(type, request.prompt_tokens)} == {int}
        assert request.error is None and "token id True is not one of 0 to" in wrong.error


def test_a_stop_string_has_a_longest_length():
    assert SamplingParams(stop="a" * 1024).stop
    with pytest.raises(ValueError, match=r"^stop has a string of 1025 characters: give at most 1024$"):
        SamplingParams(stop=["a", "a" * 1025])


@pytest.mark.parametrize("name", [name for name in CHANGED if name not in {*WEEK_3, "stop"}])
def test_week_2_uses_it(name):
    assert heard(**{name: CHANGED[name]}) != heard()


def test_week_2_stops_at_the_strings_of_the_parameters_too():
    request = Request(
        FakeModel({}), ByteTokenizer(), "Hi", stop="q", sampling=SamplingParams(stop=["bc", "z"])
    )
    for byte in b"abc":
        request.decode_done(byte)
    assert (request.text, request.finish_reason) == ("a", "stop")


@pytest.mark.parametrize("name", WEEK_3)
def test_week_2_refuses_it_by_name(name):
    with pytest.raises(ValueError, match=f"^{name}: only the engine of Week 3"):
        Request(FakeModel({}), ByteTokenizer(), "Hi", sampling=SamplingParams(**{name: CHANGED[name]}))
