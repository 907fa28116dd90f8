"""The Gaudi side of the torch port: twins on this CPU, and every vendor call beside an imitation of the plug-in.

Nothing here ran on a Gaudi. `imitation_gaudi/` records what `hpu.py` asks for; the expected calls below are written
down from the plug-in's public source.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from tiny_llm_course.grading.flash import statistics64
from tiny_llm_engine.arrays.torch import fused, hpu
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_extensions.gaudi import hpu_quantized, hpu_self_check
from tiny_llm_ref.torch_backend.flash_attention import fused_statistics

IMITATION = ROOT / "tests_refsol" / "imitation_gaudi"
CACHE = Path(tempfile.gettempdir()) / "imitation-of-a-cache"
# Of a process that finds the imitation on its path.
BESIDE = {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(CACHE)}
BESIDE["PYTHONPATH"] = os.pathsep.join([str(IMITATION), str(ROOT / "src")])
RECIPES = f"{CACHE}/tiny-llm/gaudi-0+imitation,false,8192,false"
OURS = {f"PT_HPU_{name}": "0" for name in ("LAZY_MODE", "AUTOLOAD", "WEIGHT_SHARING")}
OURS |= {"PT_HPU_ENABLE_LAZY_COLLECTIVES": "true", "PT_HPU_RECIPE_CACHE_CONFIG": RECIPES}
COMPILING = {"FUSER_ENABLE_MULTI_THREADED_INVOCATIONS": "1"}  # not in lazy mode
LAZY = {"PT_HPU_LAZY_MODE": "1", "IMITATION_GAUDI": "fork"}


@contextmanager
def nothing_set() -> Iterator[None]:
    """Without the variables that `hpu.py` has set in this process."""
    with patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith(("PT_HPU_", "FUSER_"))]:
            del os.environ[name]
        yield


@pytest.fixture(scope="module")
def exercise(forks) -> Callable[..., dict]:
    """What `exercise.py` reports. Without settings in a process of its own, which imports torch itself."""

    @cache
    def report(**settings: str) -> dict:
        with nothing_set():
            if settings:
                done = forks.run("exercise", **BESIDE, **settings)
            else:
                program, env = [sys.executable, "-m", "exercise"], os.environ | BESIDE
                done = subprocess.run(program, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return report


@pytest.fixture(params=[{}, LAZY], ids=["eager", "lazy"])
def report(request, exercise) -> dict:
    """What it reports in each mode of the plug-in."""
    return exercise(**request.param)


def calls_of(report: dict, name: str) -> list[list]:
    return [arguments for called, arguments in report["calls"] if called == name]


# Detection and import order


def test_without_the_plug_in_there_is_no_hpu_and_a_line_says_why(monkeypatch):
    monkeypatch.setattr(hpu, "find_spec", lambda name: None)
    look_again = hpu.detect.__wrapped__
    assert look_again() == hpu.Detection(False, False, "no habana_frameworks in this environment")


def test_the_imitation_is_detected_and_chosen_for_auto(exercise):
    report = exercise()
    assert report["detection"] == {"available": True, "lazy": False, "reason": "1 x imitation of a Gaudi"}
    assert report["available"] and report["device"] == "hpu"


def test_the_environment_is_set_before_torch_is_imported(exercise):
    (environment,) = calls_of(exercise(), "import torch")
    assert environment == [OURS | COMPILING]


def test_torch_does_not_load_the_plug_in_but_hpu_does_after_it(exercise):
    names = [name for name, _ in exercise()["calls"]]
    assert names[:2] == ["import torch", "load plug-in"]
    assert names.count("load plug-in") == 1


def test_what_the_user_has_set_stays(exercise):
    report = exercise(**LAZY)
    (environment,) = calls_of(report, "load plug-in")
    assert environment == [OURS | {"PT_HPU_LAZY_MODE": "1"}]
    assert report["detection"]["lazy"]


@pytest.mark.parametrize("user", [None, "/mine,true,10,false"])
def test_compiled_recipes_are_kept_between_starts(monkeypatch, tmp_path, user):
    """In the user's cache folder by plug-in; what the user has named stays, and so does nothing without a plug-in."""
    name = "PT_HPU_RECIPE_CACHE_CONFIG"
    monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hpu.keep_recipes()
    assert name not in os.environ and not (tmp_path / "cache").exists()
    monkeypatch.setattr(hpu, "find_spec", lambda name: "a plug-in")
    monkeypatch.setattr(hpu, "version", lambda name: "1.24.1")
    if user:
        monkeypatch.setenv(name, user)
    hpu.keep_recipes()
    folder = tmp_path / "cache" / "tiny-llm" / "gaudi-1.24.1"
    assert os.environ[name] == (user or f"{folder},false,8192,false") and folder.is_dir()


def test_a_cache_that_cannot_be_written_keeps_no_recipes(monkeypatch, tmp_path):
    monkeypatch.delenv("PT_HPU_RECIPE_CACHE_CONFIG", raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(hpu, "find_spec", lambda name: "a plug-in")
    hpu.keep_recipes()
    assert "PT_HPU_RECIPE_CACHE_CONFIG" not in os.environ


def test_a_plug_in_without_a_card_leaves_the_cpu(exercise):
    report = exercise(IMITATION_GAUDI="no-card")
    assert report["detection"]["reason"] == "the plug-in is here but it finds no card"
    assert not report["available"] and report["device"] == "cpu"


OTHER_TORCH = "AssertionError: built for PyTorch 2.11.0, but the run-time one is 2."
MISFITS = [
    ({"IMITATION_GAUDI": "other-torch"}, OTHER_TORCH),
    ({"PT_HPU_LAZY_MODE": "1"}, "AssertionError: Stock PyTorch is not supported in Lazy mode."),
]


@pytest.mark.parametrize(("settings", "message"), MISFITS)
def test_a_plug_in_that_does_not_fit_is_one_line_and_the_cpu(exercise, settings, message):
    report = exercise(**settings)
    assert report["device"] == "cpu"
    reason = report["detection"]["reason"]
    assert reason.startswith(f"the plug-in does not load: {message}") and "\n" not in reason


def test_each_rank_has_a_card_of_its_own(monkeypatch):
    """The engine is rank 0 though no variable says so. Without an HPU nothing is named."""
    monkeypatch.delenv("HABANA_VISIBLE_MODULES", raising=False)
    assert hpu.card_of_rank(1) == {}
    monkeypatch.setattr(hpu, "available", lambda: True)
    assert [hpu.card_of_rank(rank) for rank in (0, 3)] == [{"HLS_MODULE_ID": "0"}, {"HLS_MODULE_ID": "3"}]
    monkeypatch.setenv("HABANA_VISIBLE_MODULES", "4,6")
    assert hpu.card_of_rank(1) == {"HLS_MODULE_ID": "6"}
    with pytest.raises(ValueError, match="rank 2 needs a card of its own"):
        hpu.card_of_rank(2)


# The vendor's calls: arguments by position, types, places


def test_rms_norm_hands_over_one_type_and_eps(report):
    expected = ["bfloat16 hpu [2, 5, 128]", "bfloat16 hpu [128]", 1e-5, True, 0, False]
    assert calls_of(report, "FusedRMSNorm") == [expected]


def test_rope_hands_over_tokens_and_their_rows(report):
    rows = "float32 hpu [10, 1, 128]"
    expected = ["bfloat16 hpu [10, 4, 128]", rows, rows, None, 0, "BLOCKWISE"]
    assert calls_of(report, "apply_rotary_pos_emb")[0] == expected


def test_rope_gives_back_the_type_that_it_got(exercise):
    """A float32 table makes the vendor's result float32."""
    assert exercise()["rotated"] == "torch.bfloat16"


def test_attention_hands_over_few_key_heads_and_a_mask_or_the_causal_flag(report):
    query = "bfloat16 hpu [2, 4, 5, 128]"
    past, fresh = "bfloat16 hpu [2, 2, 8, 128]", "bfloat16 hpu [2, 2, 5, 128]"
    rest = [128**-0.5, "fp32", True, None, "right"]
    assert calls_of(report, "FusedSDPA") == [
        [query, past, past, None, 0.0, False, *rest],
        [query, fresh, fresh, None, 0.0, True, *rest],
        [query, fresh, fresh, None, 0.0, True, *rest[:3], "int32 hpu [2]", "right"],
        [query, past, past, "bfloat16 hpu [2, 1, 5, 8]", 0.0, False, *rest],
    ]


def test_the_imitation_refuses_softmax_modes_that_no_source_knows(exercise):
    """The real bridge takes its default for them, in silence."""
    assert exercise()["refused modes"] == [["fp32", "float32"], ["exact", "bfloat16"]]


def test_flash_attention_says_causal_once_in_the_kernels_words(report):
    """The flag for squares, a mask for a past, neither for one query; other masks become four axes of query's type."""
    flash = report["flash_calls"]
    calls = [[arguments[0][9:], *arguments[3:6]] for arguments in flash]
    assert calls == [
        ["hpu [2, 4, 5, 128]", None, 0.0, True],
        ["hpu [2, 4, 3, 128]", "bfloat16 hpu [2, 1, 3, 5]", 0.0, False],
        ["hpu [2, 4, 1, 128]", None, 0.0, False],
        ["hpu [2, 4, 3, 128]", "bfloat16 hpu [2, 1, 3, 5]", 0.0, False],  # from (S,)
        ["hpu [2, 4, 3, 128]", "bfloat16 hpu [2, 4, 3, 5]", 0.0, False],  # from (B, H, L, S)
    ]
    recompute = [arguments[8] for arguments in flash]
    assert recompute == [True, True, False, True, True], "one query has no score matrix to recompute"


RIGHT = "FusedSDPA.apply(made(1, 4, 3, 8), made(1, 2, 5, 8), made(1, 2, 5, 8), {}0.3, 'fp32', True, None, 'right'{})"
PLAIN = RIGHT.format("None, 0.0, False, ", "")
WRONG = {
    PLAIN: "accepted",
    RIGHT.format("None, 0.0, False, ", ", False, False, (-1, -1), None"): "accepted",
    RIGHT.format("None, 0.0, False, ", ", False, False, (-1, -1), None, 1"): "TypeError: ",
    RIGHT.format("None, 0.0, False, ", ", sinks=None"): "TypeError: ",
    RIGHT.format("None, 0.1, False, ", ""): "AssertionError: not what inference asks for",
    RIGHT.format("made(1, 1, 3, 5), 0.0, True, ", ""): "AssertionError: causality goes into the mask",
    RIGHT.format("made(3, 5), 0.0, False, ", ""): "AssertionError",
    PLAIN.replace("4, 3, 8", "4, 1, 8"): "AssertionError: no caller of L = 1",
    PLAIN.replace("1, 4, 3, 8", "4, 3, 8"): "AssertionError: the layout is",
    PLAIN.replace("4, 3, 8", "3, 3, 8"): "AssertionError: query heads come",
}


def test_the_imitation_refuses_what_the_vendors_signature_does_not_have(forks):
    """Arguments beyond it, names, other values than inference wants, one query with recompute, wrong shapes."""
    with nothing_set():
        done = forks.run("calls", *WRONG, **BESIDE)
    assert done.returncode == 0, done.stderr
    for call, told, expected in zip(WRONG, json.loads(done.stdout), WRONG.values(), strict=True):
        assert told.startswith(expected), f"{call}: {told}"


@pytest.mark.parametrize("mix", ["decodes", "prompts", "hybrid", "alone"])
def test_packed_steps_are_as_exact_as_their_type_at_any_score(report, mix):
    """bf16 rounds results between 2 and 4 by 0.0078. Rounded scores gave decodes 0.19 at 41."""
    errors = report["packed"][mix]
    assert max(errors.values()) <= 0.0079, errors


def test_packed_steps_with_windows_and_in_buckets(report):
    """A bucket pads the rows of the decodes with rows of chunks, which keep what the kernel has found."""
    assert max(report["padded"], *report["window"].values()) <= 0.0079
    assert report["float32"] <= 1e-5


def test_a_prompt_alone_has_no_mask_and_says_how_long_it_is(report):
    """43 rows in a bucket of 64. The imitation leaves NaN in the padding. Layers with a window keep their mask."""
    assert max(report["alone"]) <= 0.0079
    causal, windowed = (arguments for name, arguments in report["alone_calls"] if name == "FusedSDPA")
    query, keys = "bfloat16 hpu [1, 4, 64, 128]", "bfloat16 hpu [1, 2, 64, 128]"
    rest = [128**-0.5, "fp32", True]
    assert causal == [query, keys, keys, None, 0.0, True, *rest, "int32 hpu [1]", "right"]
    mask = "bfloat16 hpu [1, 1, 64, 64]"
    assert windowed == [query, keys, keys, mask, 0.0, False, *rest, None, "right"]


def test_a_plane_of_the_mask_that_is_too_large_is_nan_without_tiles_and_exact_with_them(report):
    """52 rows and 212 keys, padding included: the fewest calls of equal size."""
    (whole, one), (tiled, several) = report["planes"]
    assert whole == "nan" and one == ["bfloat16 hpu [1, 1, 52, 212]"]
    assert float(tiled) <= 0.0079 and several == ["bfloat16 hpu [1, 1, 26, 212]"] * 2


def test_a_step_is_one_call_over_past_and_own_keys_with_one_mask(report):
    """52 rows; 10 pages of 16 of the one chunk with a past, then the 52 rows again."""
    name, arguments = report["packed_calls"]
    keys = "bfloat16 hpu [1, 2, 212, 128]"
    rest = [0.0, False, 128**-0.5, "fp32", True, None, "right"]
    assert name == "FusedSDPA"
    assert arguments == ["bfloat16 hpu [1, 4, 52, 128]", keys, keys, "bfloat16 hpu [1, 1, 52, 212]", *rest]


def test_the_engine_gives_the_tokens_of_a_cpu(report):
    assert report["tokens on hpu"] == report["tokens on cpu"]
    assert [len(tokens) for tokens in report["tokens on hpu"]] == [6] * 4


@pytest.mark.parametrize("way", ["hpu", "hpu ahead"])
def test_the_host_waits_once_for_the_tokens_of_a_step(report, way):
    """For an event that follows their copy. With asynchronous scheduling the next step has been launched by then."""
    waits, steps = report[f"waits on {way}"]
    assert waits == ["event"] * steps and report[f"tokens on {way}"] == report["tokens on cpu"]


def test_arrays_for_the_device_are_copied_without_waiting(exercise):
    assert exercise()["blocking"] == []


def test_uint4_hands_over_words_along_the_outputs(report):
    """The first call is the self-check's, of a matrix (128, 64). A linear layer of (24, 128) calls it in lazy mode."""
    words, scales, zeros = "int32 hpu [64, 16]", "bfloat16 hpu [2, 128]", "int32 hpu [2, 16]"
    layer = ["int32 hpu [128, 3]", "bfloat16 hpu [2, 24]", "int32 hpu [2, 3]", "torch.bfloat16"]
    expected = [[words, scales, zeros, "torch.bfloat16"], *([layer] if report["detection"]["lazy"] else [])]
    assert calls_of(report, "convert_from_uint4") == expected


def test_an_operator_that_fails_is_named_and_the_others_are_checked(monkeypatch):
    def fails(*inputs, dtype):
        raise RuntimeError("no kernel\nfor convert_from_uint4")

    monkeypatch.setattr(hpu_self_check, "convert_from_uint4", fails)
    errors = dict(hpu_self_check.self_check("cpu"))
    assert errors.pop("uint4") == "RuntimeError: no kernel for convert_from_uint4"
    assert len(errors) == 9 and set(errors.values()) == {0.0}


def test_groups_without_a_whole_zero_stay_words_on_the_device(report):
    """Numbers around 5 have no zero from 0 to 15: they are dequantised by plain operators, on the device."""
    for name, in_words in (("uint4", False), ("words", True)):
        no_kernel, device, error = report[f"{name} linear"]
        assert (no_kernel, device) == (in_words, "hpu:0")
        assert error <= 1.2 * report[f"{name} scale"] + 0.05


def test_mark_step_is_called_in_lazy_mode_only(exercise):
    """By a cache that materializes: the runner asks for that after a call from which it reads nothing."""
    assert calls_of(exercise(), "mark_step") == []
    assert calls_of(exercise(**LAZY), "mark_step") == [["", False]]


def test_fused_results_equal_the_twins_to_bf16(report):
    errors = report["errors"]
    assert len(errors) == 10
    assert max(errors.values()) <= 0.04, errors  # one step of bf16 between 4 and 8


def test_tensors_of_a_cpu_take_the_twins_on_a_gaudi_too(exercise):
    assert exercise()["calls_for_cpu_tensors"] == []


def test_the_day_tests_pass_on_the_imitated_device(forks):
    """The port never mixes tensors of the host and of the device, which a CPU alone would not notice.

    Left out are those of the policy, whose names have no port and which ask for no device; those of memory, which is
    the host's here; Day 4.1's kernels in C++, which compute on the host; and a mask that is traced without numbers.
    """
    others = "[torch and not memory and not holds_few_tiles and not mask_where_the_scores_are"
    options = ["-q", "-x", "-p", "tiny_llm_course.grading.plugin", "-p", "no:cacheprovider", "-k", others]
    options += ["--solution=ref", "--backends=torch", "--device=hpu"]
    options += ["--ignore=tests/test_week_4_day_1.py"]
    with nothing_set():
        done = forks.run("pytest", *options, "tests", **BESIDE)
    assert done.returncode == 0, done.stdout


# The twins, against float64


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attention(query, key, value, scale, bias) -> np.ndarray:
    """(B, H, L, D) in float64, with every key head repeated."""
    q, k, v = (tensor.double().numpy() for tensor in (query, key, value))
    k, v = (np.repeat(heads, q.shape[1] // k.shape[1], axis=1) for heads in (k, v))
    return softmax(q @ k.swapaxes(-1, -2) * scale + bias) @ v


def test_rms_norm_twin():
    x, weight = normal(2, 3, 7), normal(7)
    wide = x.double().numpy()
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-3) * weight.double().numpy()
    np.testing.assert_allclose(fused.rms_norm(x, weight, 1e-3).numpy(), expected, atol=1e-6)


def test_rms_norm_takes_its_statistics_in_float32():
    x = torch.full((1, 4096), 300.0, dtype=torch.float16)  # 300² is no float16
    assert fused.rms_norm(x, torch.ones(4096)).tolist() == torch.ones(1, 4096).tolist()


def test_rope_twin_turns_the_pairs_of_the_two_halves():
    x, positions = normal(2, 5, 3, 8), np.arange(3, 8)
    angles = positions[:, None] * 100.0 ** (-np.arange(4) / 4)
    table = torch.tensor(np.concatenate([angles, angles], axis=-1))
    turned = fused.apply_rope(x, table.cos().float(), table.sin().float()).double().numpy()
    pairs = x.double().numpy()[..., :4] + 1j * x.double().numpy()[..., 4:]
    expected = pairs * np.exp(1j * angles)[:, None, :]
    np.testing.assert_allclose(turned[..., :4] + 1j * turned[..., 4:], expected, atol=1e-6)


def test_rope_accepts_other_positions_for_each_row_and_keeps_the_type():
    x, table = normal(2, 5, 3, 8), normal(2, 5, 8)
    together = fused.apply_rope(x, table.cos(), table.sin())
    alone = [fused.apply_rope(x[[i]], table[i].cos(), table[i].sin()) for i in range(2)]
    assert torch.equal(together, torch.cat(alone))
    assert fused.apply_rope(x.bfloat16(), table.cos(), table.sin()).dtype == torch.bfloat16


@pytest.mark.parametrize("H, H_kv", [(3, 3), (4, 2), (6, 1)])
def test_attention_twin_groups_heads_and_knows_causality_of_a_square(H, H_kv):
    query, key, value = normal(2, H, 5, 8), normal(2, H_kv, 5, 8), normal(2, H_kv, 5, 8)
    for is_causal, bias in ((False, 0.0), (True, np.triu(np.full((5, 5), -np.inf), 1))):
        ours = fused.fused_attention(query, key, value, 0.3, is_causal=is_causal)
        np.testing.assert_allclose(ours.numpy(), attention(query, key, value, 0.3, bias), atol=1e-6)


@pytest.mark.parametrize("shape", [(7,), (3, 7), (4, 3, 7), (2, 1, 3, 7), (2, 4, 3, 7), (1, 1, 1, 7)])
def test_attention_twin_adds_masks_of_every_shape(shape):
    query, key, value = normal(2, 4, 3, 8), normal(2, 2, 7, 8), normal(2, 2, 7, 8)
    mask = normal(*shape)
    ours = fused.fused_attention(query, key, value, 0.5, mask)
    np.testing.assert_allclose(ours.numpy(), attention(query, key, value, 0.5, mask.numpy()), atol=1e-6)


PLANES = [(8192, 131072, 2), (8192, 130944, 1), (32768, 32768, 2), (16384, 131072, 3), (16384, 65536, 2)]


@pytest.mark.parametrize(("queries", "keys", "calls"), PLANES)
def test_the_calls_that_a_bf16_mask_of_a_gaudi_needs(queries, keys, calls):
    """The first two are what the plug-in's authors measured: 2³¹ bytes, and a page less. Tiles have equal sizes."""
    rows = fused.rows_per_call(queries, 2 * keys)
    assert -(-queries // rows) == calls and queries - (calls - 1) * rows > rows - calls


@pytest.mark.parametrize("limit", [1, 29, 57, 200, 10_000])
def test_calls_are_below_the_limit_and_no_fewer_would_be(limit):
    for queries in range(1, 40):
        rows = fused.rows_per_call(queries, 28, limit)
        calls = -(-queries // rows)
        assert rows * 28 < limit or rows == 1
        assert calls == 1 or -(-queries // (calls - 1)) * 28 >= limit


@pytest.mark.parametrize("shape", [(7,), (9, 7), (2, 1, 9, 7), (2, 4, 9, 7)])
def test_tiles_of_queries_are_one_call_in_float64(monkeypatch, shape):
    """9 queries and 7 keys of 4 bytes. What fits is handed over as it is."""
    query, key, value, mask = normal(2, 4, 9, 8), normal(2, 2, 7, 8), normal(2, 2, 7, 8), normal(*shape)
    expected, seen = attention(query, key, value, 0.5, mask.numpy()), []
    twin = fused.attention
    monkeypatch.setattr(fused, "attention", lambda q, *rest: seen.append(q) or twin(q, *rest))
    for limit, rows in ((9 * 28, [5, 4]), (100, [3, 3, 3]), (9 * 28 + 1, [9])):
        seen.clear()
        ours = fused.fused_attention(query, key, value, 0.5, mask, limit=limit)
        np.testing.assert_allclose(ours.numpy(), expected, atol=1e-6)
        assert [each.shape[2] for each in seen] == rows
    assert seen[0] is query


@pytest.mark.parametrize("H, H_kv", [(3, 3), (4, 2), (6, 1)])
@pytest.mark.parametrize("shape", [(3, 7), (2, 1, 3, 7), (1, 7), (2, 1, 1, 7)])
def test_statistics_twin(H, H_kv, shape):
    """Against float64, in the one unit that a merge knows: output and logarithm of the sum. Query 1 sees nothing."""
    query, key, value = normal(2, H, shape[-2], 8), normal(2, H_kv, 7, 8), normal(2, H_kv, 7, 8)
    mask = normal(*shape)
    mask[..., 2:] = -torch.inf
    mask[..., 1:2, :] = -torch.inf
    o, m, l = fused.fused_statistics(query, key, value, 0.5, mask)
    arrays = (tensor.double().numpy() for tensor in (query, key, value))
    o64, m64, l64 = statistics64(*arrays, 0.5, mask.double().numpy())
    empty = l64 == 0
    assert empty.any() == (shape[-2] > 1) and (l.numpy()[empty] == 0).all() and (o.numpy()[empty] == 0).all()
    some, some64 = np.where(empty, 1, l.numpy()), np.where(empty, 1, l64)
    np.testing.assert_allclose(o.numpy() / some[..., None], o64 / some64[..., None], atol=1e-5)
    np.testing.assert_allclose(m.numpy() + np.log(some), m64 + np.log(some64), atol=1e-5)


def test_statistics_twin_of_another_device_is_the_ports_own():
    """A device that is neither a Gaudi nor a CPU gets Day 2.4's tiles: here `meta`, which has shapes alone."""
    query, key = torch.empty(1, 4, 3, 8, device="meta"), torch.empty(1, 2, 7, 8, device="meta")
    assert not fused.has_statistics_kernel(query)
    statistics = fused_statistics(query, key, key, None, torch.empty(3, 7, device="meta"))
    assert [tuple(part.shape) for part in statistics] == [(1, 4, 3, 8), (1, 4, 3), (1, 4, 3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("H, H_kv", [(3, 3), (4, 2), (6, 1)])
def test_statistics_of_a_decode_by_products(H, H_kv, dtype):
    """Against float64, with scores up to 80. Row 1 sees nothing."""
    query, key, value = (normal(2, heads, S, 8).to(dtype) for heads, S in ((H, 1), (H_kv, 7), (H_kv, 7)))
    query, mask = query * 20, normal(2, 1, 1, 7)
    mask[1] = -torch.inf
    o, m, l = hpu.decode_statistics(query, key, value, 0.5, mask)
    arrays = (tensor.double().numpy() for tensor in (query, key, value))
    o64, m64, l64 = statistics64(*arrays, 0.5, mask.double().numpy())
    tolerance = 1e-4 if dtype == torch.float32 else 0.02
    assert o.dtype == m.dtype == l.dtype == torch.float32
    np.testing.assert_allclose(m.numpy(), m64, atol=1e-4)
    np.testing.assert_allclose(l.numpy(), l64, atol=1e-3)
    np.testing.assert_allclose(o.numpy(), o64, atol=tolerance)


def test_uint4_twin_counts_along_the_outputs():
    """Nibble j of word c is column 8c + j, lowest bits first, the highest bit is no sign, zeros are subtracted."""
    generator = np.random.default_rng(0)
    q, zeros = generator.integers(0, 16, size=(64, 24)), generator.integers(0, 16, size=(2, 24))
    q[:, 7::8] = 15
    scales = torch.tensor(generator.normal(size=(2, 24)), dtype=torch.bfloat16)

    def words(numbers):
        shifted = numbers.reshape(len(numbers), 3, 8).astype(np.uint32) << np.arange(
            0, 32, 4, dtype=np.uint32
        )
        return torch.tensor(np.bitwise_or.reduce(shifted, axis=-1).view(np.int32))

    ours = hpu_quantized.convert_from_uint4(words(q), scales, words(zeros), torch.float32)
    expected = (q - np.repeat(zeros, 32, 0)) * np.repeat(scales.float().numpy(), 32, 0)
    np.testing.assert_allclose(ours.numpy(), expected, rtol=2**-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zero_points_are_those_of_groups_with_both_signs(dtype):
    """MLX's rule makes 0 a mark of every ruler that reaches it, so such groups have whole zeros, also in bf16."""
    from tiny_llm_ref.torch_backend import quantize_weights

    _, scales, biases = quantize_weights(normal(40, 256).to(dtype), 32, 4)
    zeros = hpu_quantized.zero_points(scales, biases)
    assert zeros.dtype == torch.int32 and zeros.min() >= 0 and zeros.max() <= 15
    error = (scales.double() * zeros + biases.double()).abs() / biases.double().abs()
    assert error.max() <= torch.finfo(dtype).eps


def test_there_are_no_zero_points_where_a_group_has_none():
    scales, biases = torch.tensor([[0.1, 0.1]]), torch.tensor([[-0.8, -0.8]])
    assert hpu_quantized.zero_points(scales, biases).tolist() == [[8, 8]]
    for bias in (0.8, -1.6, -0.85):  # zeros of -8, 16 and 8.5
        assert hpu_quantized.zero_points(scales, torch.tensor([[-0.8, bias]])) is None


def test_a_matrix_for_uint4_multiplies_as_its_words_do():
    from tiny_llm_ref.torch_backend import dequantize_weights, quantize_weights, words_to_numbers

    words, scales, biases = quantize_weights(normal(24, 128).bfloat16(), 64, 4)
    matrix = hpu_quantized.uint4_matrix(words_to_numbers(words, 4), scales, biases, "cpu")
    assert matrix.shape == (24, 128) and matrix.nbytes == 24 * 128 // 2 + 24 * 2 * 2 + 24 * 2 // 2
    expected = dequantize_weights(words, scales, biases, 64, 4)
    x = torch.eye(128)
    np.testing.assert_allclose(matrix(x).numpy(), expected.float().T.numpy(), atol=0.02)
    rows = words_to_numbers(words[:23], 4), scales[:23], biases[:23]
    assert hpu_quantized.uint4_matrix(*rows, "cpu") is None


# Graphs


def test_lazy_mode_records_graphs_as_the_plug_in_takes_them(exercise):
    """Inputs are handed over and not copied. The third set of shapes is one too many, so it has no graph."""
    report = exercise(**LAZY)
    captures = [["captured", []]] * 2
    assert report["graph_calls"] == [["wrap_in_hpu_graph", [False, True, False, 2]], *captures]
    replays = [[10.0] * 3, [10.0] * 3, [2.0] * 3, [2.0] * 4]
    assert report["replays"] == replays, "a kept result is written again"


def test_a_host_read_inside_a_captured_step_is_refused(exercise):
    assert exercise(**LAZY)["host read"] == "item: the host reads nothing while an HPU graph is captured"


def test_without_lazy_mode_there_are_no_graphs_to_record(exercise):
    assert exercise()["graph_calls"] == []


def test_compile_mode_asks_for_the_vendors_compiler_and_fixed_shapes(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: (function, options))
    fixed = {"backend": "hpu_backend", "options": {"force_static_compile": True}}
    assert hpu.compile_static(len) == (len, fixed)


def test_the_self_check_of_a_twin_against_itself_is_exact():
    assert [error for _, error in hpu_self_check.self_check("cpu")] == [0.0] * 10
