"""Uses `hpu.py` as the port would and prints, as JSON, what came of it. `test_hpu.py` runs it beside the imitation."""

import json

import numpy as np

from tiny_llm_kit.port import Port

b = Port("ref", "torch")
hpu = b.hpu

report = {"device": b.device, "detection": vars(hpu.detect()), "available": hpu.available()}
hpu.mark_step()
if hpu.available():
    report["errors"] = dict(hpu.self_check("hpu"))
    x, table = b.array(np.ones((1, 2, 3, 4)), "bfloat16"), b.array(np.ones((2, 4)), "float32")
    report["rotated"] = str(hpu.apply_rope(x, table, table).dtype)

from habana_frameworks import record  # noqa: E402

report["calls"] = list(record.calls)
record.calls.clear()
hpu.self_check("cpu")  # the tensors of a CPU take the twins, on a Gaudi's host too
report["calls_for_cpu_tensors"] = list(record.calls)
print(json.dumps(report))
