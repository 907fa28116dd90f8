"""The serving engine, given: what every answer runs through.

From a request to its last token, read in this order: `llm` (prompts, and what opens an engine), `engine_request` and
`llm_engine` (requests of users), `sampling` and `request_life` (a request), `admission` (who waits, who runs),
`step_loop` (plan, pack, run, commit), `scheduled` (a plan), `packed_model` and `packed_runner` (a call of the model),
`backends/seeded_sampling` (its tokens), `events` and `outputs` (results). What may be put on it is in `hooks`.

Beside it: `loading` and `models` make weights and ids of files, `arrays` keeps keys and values, `solutions` finds a
solution by its name, `machine` asks about memory, libraries and terminals, and `chunked_prefill` is given in Week 2.
"""

import os

# Threads that wait for each other spin by default, and on busy cores they spin away the time of those that they wait
# for: two commands at once on two cores took 20 times as long as one. They sleep soon instead; at once would cost a
# lone command 5 % of a prompt. All are read when the libraries load, so they are set before torch or MLX is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # of PyTorch
os.environ.setdefault(
    "GOMP_SPINCOUNT", "1000"
)  # of PyTorch on Linux: 300,000 without the line above, 0 with it
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # of MLX on Linux: spins for 2**4 cycles
