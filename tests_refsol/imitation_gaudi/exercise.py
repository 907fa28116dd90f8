"""Uses `hpu.py` as the port would and prints, as JSON, what came of it. `test_hpu.py` runs it beside the imitation."""

import json
from functools import partial

import numpy as np

from tiny_llm_engine.solutions.port import Port

b = Port("ref", "torch")
import torch  # noqa: E402 (hpu.py precedes it)

from tiny_llm_engine.arrays.torch import fused, hpu  # noqa: E402
from tiny_llm_extensions.gaudi import hpu_self_check  # noqa: E402

report = {"device": b.device, "detection": vars(hpu.detect()), "available": hpu.available()}
b.TinyKvFullCache().materialize()
if hpu.available():
    report["errors"] = dict(hpu_self_check.self_check("hpu"))
    x, table = b.array(np.ones((1, 2, 3, 4)), "bfloat16"), b.array(np.ones((2, 4)), "float32")
    report["rotated"] = str(fused.apply_rope(x, table, table).dtype)
    # Quantised weights in a linear layer: those that have whole zeros, and those that do not, which stay words.
    for name, shift in (("uint4", 0.0), ("words", 5.0)):
        w = np.random.default_rng(0).normal(size=(24, 128)) + shift
        quantized = b.quantize_matrix(torch.tensor(w, dtype=torch.float32), 64, 4)
        weights = b.prepare_weights(quantized, device="hpu")
        ones = b.array(np.eye(128), "bfloat16")
        difference = b.numpy(b.quantized_linear(ones, weights)) - w.T
        error = float(abs(difference).max())
        report[f"{name} linear"] = [weights.prepared is None, str(weights.device), error]
        report[f"{name} scale"] = float(quantized.scales.abs().max())

from habana_frameworks import record  # noqa: E402

report["calls"] = list(record.calls)
record.calls.clear()
if hpu.available():
    numbers = np.random.default_rng(0).normal(size=(2, 4, 5, 128))
    query, key = b.array(numbers, "bfloat16"), b.array(numbers[:, :2], "bfloat16")
    for L in (5, 3, 1):
        b.flash_attention_device(query[:, :, -L:], key, key, mask="causal")
    for shape in ((5,), (2, 4, 3, 5)):
        b.flash_attention_device(query[:, :, -3:], key, key, mask=b.array(np.zeros(shape)))
    from habana_frameworks.torch.hpex.kernels import FusedSDPA

    def is_refused(mode: str, dtype: str) -> bool:
        try:
            FusedSDPA.apply(*[b.array(numbers, dtype)] * 3, None, 0.0, True, 1.0, mode, True, None, "right")
        except AssertionError:
            return True
        return False

    modes = [("fast", "float32"), ("None", "float32"), ("fp32", "bfloat16"), ("fp32", "float32")]
    modes.append(("exact", "bfloat16"))
    count = len(record.calls)
    report["refused modes"] = [mode for mode in modes if is_refused(*mode)]
    del record.calls[count:]
report["flash_calls"] = [arguments for _, arguments in record.calls]
record.calls.clear()
if hpu.available():
    import packed_steps

    from tiny_llm_ref.serving import make_buckets

    # Of each step of several requests: errors against float64, and what the kernel was asked in the last one.
    report["packed"] = {
        name: {score: packed_steps.error(packed_steps.make_step(mix, score)) for score in packed_steps.SCORES}
        for name, mix in packed_steps.MIXES.items()
    }
    report["packed_calls"] = record.calls[-1]
    hybrid = packed_steps.make_step(packed_steps.MIXES["hybrid"], 20)
    report["window"] = {window: packed_steps.error(hybrid, window=window) for window in (1, 30, 170)}
    buckets = make_buckets("exponential", 64, 8, 256, packed_steps.PAGE)
    report["padded"] = packed_steps.error(hybrid, bucket=buckets.of(hybrid.batch))
    report["float32"] = packed_steps.error(hybrid, dtype="float32")
    # One prompt without a past, in a bucket, and where layers have a window.
    alone = packed_steps.make_step(packed_steps.MIXES["alone"], 20)
    record.calls.clear()
    sizes = {"bucket": buckets.of(alone.batch)}
    report["alone"] = [packed_steps.error(alone, **sizes), packed_steps.error(alone, window=30, **sizes)]
    report["alone_calls"] = list(record.calls)
    # A device that has NaN from 20,000 bytes per plane of the mask: 52 rows and 212 keys take 22,048.
    from unittest.mock import patch

    from habana_frameworks.torch.hpex import kernels

    report["planes"] = []
    for limit in (2**31, 20_000):
        record.calls.clear()
        tiled = patch.object(fused, "fused_attention", partial(fused.fused_attention, limit=limit))
        with patch.object(kernels, "PLANE_BYTES", 20_000), tiled:
            found = packed_steps.error(hybrid)
        planes = [arguments[3] for name, arguments in record.calls if name == "FusedSDPA"]
        report["planes"].append([str(found), planes])
    from tiny_llm_ref import LLM, SamplingParams

    # The whole engine, with chunks and prefixes: whole steps as graphs in lazy mode. Beside it the same on the host.
    eager = None if hpu.detect().lazy else True  # importing Dynamo would take longer than all the rest
    sizes = {"num_blocks": 32, "block_size": 16, "max_num_seqs": 2, "max_num_batched_tokens": 16}
    sizes["max_model_len"] = 64
    prompts = [list(range(40, 75)), [7], list(range(40, 80)), [5, 6] * 9]
    for name, device in (("hpu", "hpu"), ("hpu ahead", "hpu"), ("cpu", "cpu")):
        options = {**sizes, "enforce_eager": eager, "async_scheduling": name == "hpu ahead"}
        with LLM(backend="torch", device=device, dtype="float32", **options) as llm:
            sampler, launches = llm.engine.runner.sampler, []
            launch = sampler.launch
            sampler.launch = lambda *row: launches.append(1) or launch(*row)  # noqa: B023
            record.waits.clear()
            answers = llm.generate(prompts, SamplingParams(0.0, max_tokens=6), use_tqdm=False)
            report[f"tokens on {name}"] = [answer.outputs[0].token_ids for answer in answers]
            report[f"waits on {name}"] = [list(record.waits), len(launches)]
    record.blocking.clear()
    b.array([1, 2, 3])
    report["blocking"] = list(record.blocking)
record.calls.clear()
if hpu.available() and hpu.detect().lazy:
    step = hpu.wrap_in_graph(lambda x, past: x * 2 if past is None else x + past, 2)
    ones = b.array(np.ones(3))
    results = [step(ones, None), step(ones * 5, None), step(ones, ones), step(b.array(np.ones(4)), None)]
    report["replays"] = [result.cpu().tolist() for result in results]
report["graph_calls"] = list(record.calls)
if hpu.available() and hpu.detect().lazy:
    try:
        hpu.wrap_in_graph(lambda x: x * 2 if x.sum().item() else x, 2)(ones)
    except RuntimeError as error:
        report["host read"] = str(error)
record.calls.clear()
hpu_self_check.self_check("cpu")  # the tensors of a CPU take the twins, on a Gaudi's host too
report["calls_for_cpu_tensors"] = list(record.calls)
print(json.dumps(report))
