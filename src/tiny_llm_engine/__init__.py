"""The serving engine, given: what every answer runs through.

From a request to its last token, read in this order: `sampling`, `request_life` and `scheduled` (a request),
`admission` (who waits, who runs), `step_loop` (plan, pack, run, commit), `packed_runner` (a call of the model),
`backends/seeded_sampling` (its tokens), `llm_engine` and `engine_request` (requests of users, and their results). What
may be put on it from outside is in `hooks`. Beside it `models` makes weights and ids of files, and `arrays` keeps keys
and values.

It reaches a solution by name alone, see `solution`.
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
