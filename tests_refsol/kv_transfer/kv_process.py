"""An engine in a process of its own, for tests that kill it: each line of stdin is a request."""

import json
import sys
import time

from tests_refsol.kv_transfer.pairs import engine
from tiny_llm_ref import SamplingParams


def main() -> None:
    """Prints the connector's address, then the number of cached tokens and the tokens of each answer."""
    backend, folder, config, pause = json.loads(sys.argv[1])
    made = engine(backend, folder, kv_transfer_config=config)
    made.listeners.append(lambda event: time.sleep(pause if event.kind == "step" else 0))
    print(json.dumps(made.extensions["kv_transfer"].address), flush=True)
    for line in sys.stdin:
        ids, max_tokens, extra = json.loads(line)
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args=extra)
        request = made.request(None, ids, params)
        made.run([request])
        [answer] = request.output().outputs
        print(json.dumps([request.output().num_cached_tokens, answer.token_ids]), flush=True)


if __name__ == "__main__":
    main()
