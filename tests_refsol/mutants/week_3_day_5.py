"""Wrong solutions of Week 3 Day 5."""

from authors.mutants import Mutant, wrong

PROFILE, ORCA, PACED = "policies/step_profile.py", "policies/mixing.py", "policies/mixing.py"
QUEUE, SLACK, PREEMPTION = "policies/aged_queue.py", "policies/slack.py", "policies/preemption.py"
SECONDS = "return max(self.math.a + self.math.b * tokens, self.memory.a + self.memory.b * decodes)"
DECODES = "decodes = [(size, 0, measure(size, size)) for size in decode_sizes]"
CHECKED = "measure(tokens, decodes) > slo"
BOTH = """        self.plan_decodes(plan)
        self.plan_prompts(plan)
"""
PACE = "            self._decodes_left -= 1\n            self.plan_decodes(plan)\n"
SET = "            self._decodes_left = self.decodes_between if plan else 0\n"
WORK = "work = 0.0 if sequence.num_preemptions else self.seconds_per_token * sequence.num_uncomputed"
KEY = "return work + self.ageing * (sequence.waiting_since + delay)"
DUE = "due = [one.token_time + self.latency_target for one in self.running if one.is_decoding]"
LEFT = "return max(tokens - len(plan), min(self.tile, most - len(plan)))"
VICTIMS = "batch = [one for one in reversed(self.running) if self.may_preempt(one)]"

MUTANTS = [
    *wrong(
        "3.5.1",
        PROFILE,
        ("decodes cost no arithmetic", SECONDS, SECONDS.replace("* tokens", "* (tokens - decodes)")),
        (
            "a step without decodes reads no memory",
            SECONDS,
            f"if not decodes:\n            return self.math.a + self.math.b * tokens\n        {SECONDS}",
        ),
        (
            "one line through prompts and decodes together",
            "return StepProfile(fit(prompts), fit(decodes))",
            "return StepProfile(fit(prompts + decodes), fit(prompts + decodes))",
        ),
        (
            "measures decodes at the sizes of the prompts",
            DECODES,
            DECODES.replace("in decode_sizes", "in sizes"),
        ),
        part="serving",
    ),
    *wrong(
        "3.5.2",
        PROFILE,
        (
            "predicts a step without its decodes",
            "self.tokens_within(slo, decodes, tile, most)",
            "self.tokens_within(slo, 0, tile, most)",
        ),
        ("a measured step exactly at the target is too slow", CHECKED, CHECKED.replace("> slo", ">= slo")),
        (
            "checks a step without its decodes",
            CHECKED,
            "measure(tokens, 0) > slo",
        ),
        (
            "a step that takes exactly the target is too late",
            "self.seconds(tokens, decodes) > seconds:",
            "self.seconds(tokens, decodes) >= seconds:",
        ),
        part="serving",
    ),
    Mutant(
        "3.5.3",
        "plans the prompts before the decodes",
        ORCA,
        serving=(BOTH, "".join(reversed(BOTH.splitlines(True)))),
    ),
    *wrong(
        "3.5.3",
        PACED,
        (
            "waits for decodes although nobody decodes",
            PACE,
            PACE + "            if not plan and self._decodes_left:\n                return\n",
        ),
        ("starts the pause with every step", SET, "            self._decodes_left = self.decodes_between\n"),
        (
            "a prompt that arrives ends the pause",
            "if self._decodes_left:",
            "if self._decodes_left and not len(self.waiting):",
        ),
        part="serving",
    ),
    *wrong(
        "3.5.4",
        QUEUE,
        (
            "batch requests always last",
            KEY,
            KEY.replace("return work", 'return 1e9 * (sequence.priority == "batch") + work'),
        ),
        (
            "a preempted request counts as new",
            WORK,
            "work = self.seconds_per_token * sequence.num_uncomputed",
        ),
        ("the work of the whole prompt", WORK, WORK.replace("num_uncomputed", "num_prompt_tokens")),
        part="serving",
    ),
    *wrong(
        "3.5.5",
        SLACK,
        ("everybody who runs has a deadline, also in prefill", DUE, DUE.replace(" if one.is_decoding", "")),
        (
            "forgets the memory that the decodes after the chunk read",
            "self.profile.seconds(ready, ready)\n        tokens",
            "self.profile.seconds(ready)\n        tokens",
        ),
        (
            "forgets the memory that the decodes beside the chunk read",
            "tokens_within(slack, len(plan),",
            "tokens_within(slack, 0,",
        ),
        ("a tile for prompts, also above the budget", LEFT, "return max(tokens - len(plan), self.tile)"),
        ("whole tiles also when nobody decodes", "        if not ready:\n            return most\n", ""),
        part="serving",
    ),
    Mutant(
        "3.5.4",
        "interactive requests give way as well",
        PREEMPTION,
        serving=(VICTIMS, "batch = [*reversed(self.running)]"),
    ),
]
