"""Answers of an engine of two pipeline stages, also after interruptions, and when each stage computed; as JSON."""

import json
import sys

from tiny_llm_extensions.parallel.timed_group import take_spans
from tiny_llm_ref import LLM, SamplingParams

model, backend, chats, options, params = json.loads(sys.argv[1])
params = [SamplingParams(**each) for each in params]
with LLM(model, backend=backend, device="cpu", pipeline_parallel_size=2, **options) as llm:
    in_flight, left = llm.engine.loop.calls.in_flight, []
    llm.engine.listeners.append(lambda event: left.append(len(in_flight)) if event.kind == "step" else None)
    found = [llm.chat(chats, params, use_tqdm=False) for _ in range(2)]
    spans, steps = take_spans(llm.engine.extensions["ranks"]), list(left)

    def interrupt(*_):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt

    def interrupted(on_step):
        prompts = [llm.get_tokenizer().apply_chat_template(each) for each in chats]
        ids = [llm.get_tokenizer().encode(each) for each in prompts]
        try:
            requests = [llm.engine.request(None, *each) for each in zip(ids, params, strict=True)]
            llm.engine.run(requests, on_step)
        except KeyboardInterrupt:
            assert not in_flight and llm.engine.allocator.num_free == llm.engine.runner.num_blocks
            llm.reset_prefix_cache()
            found.append(llm.chat(chats, params, use_tqdm=False))

    calls = []
    interrupted(interrupt)
    calls, llm.engine.runner.on_logits = [], interrupt
    interrupted(lambda: None)
print(json.dumps([[[o.outputs[0].text for o in outputs] for outputs in found], spans, steps]))
