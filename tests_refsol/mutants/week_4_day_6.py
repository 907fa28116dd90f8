"""Wrong solutions of Week 4 Day 6."""

from authors.mutants import Mutant, wrong

FOLDER = "disaggregation/"

# Tasks 1 and 2.
OUTBOX = FOLDER + "outbox.py"
STOP = "stop = length if computed >= length else computed // size * size"
ROOM = "[: len(self.free)]\n"
SAVES = wrong(
    "4.6.1",
    OUTBOX,
    ("sends a block that is not full", "else computed // size * size", "else computed"),
    ("forgets the last block", STOP, "stop = min(computed, length) // size * size"),
    ("the last block is final a token early", "if computed >= length", "if computed >= length - 1"),
    ("the end of the prompt is one step alone", "if computed >= length", "if computed == length"),
    ("sends the answer, too", "stop = length if", "stop = computed if"),
    ("sends all again after a preemption", "range(transfer.stop, ", "range(0, "),
    (
        "all or nothing when rows are few",
        ROOM,
        "\n        if len(starts) > len(self.free):\n            return []\n",
    ),
    ("a row that is in use stays free", "self.free.pop()", "self.free[-1 - start // size]"),
    part="serving",
    inside="Outbox.to_save",
)
FREED = "                self.free += [block.row for block in transfer.blocks]\n"
EXPIRES = wrong(
    "4.6.2",
    OUTBOX,
    ("frees what is being read", " and not transfer.readers", ""),
    ("a reader that died was done", "if is_done:", "if True:", "Outbox.close"),
    ("what was read waits for another reader", "True, now", "True, now + self.keep_seconds", "Outbox.close"),
    ("the last reader ends the others", "transfer.readers -= 1", "transfer.readers = 0", "Outbox.close"),
    ("frees nothing when a reader leaves", "        self.expire(now)\n", "", "Outbox.close"),
    ("waits a moment longer", "transfer.expires <= now", "transfer.expires < now"),
    ("rows are lost with their prompt", FREED, ""),
    ("a freed prompt can still be asked for", "del self.transfers[transfer_id]", "transfer.blocks = []"),
    part="serving",
    inside="Outbox.expire",
)

# Task 3.
BUSY = "free.get(each.sender, 0.0), free.get(each.receiver, 0.0)"
LOOP = "    for each in computed:\n        begins = max(each.time, "
ARRIVALS = wrong(
    "4.6.3",
    FOLDER + "overlap.py",
    ("any number of engines are received from at a time", BUSY, "free.get(each.sender, 0.0)"),
    ("any number of engines are sent to at a time", BUSY, "free.get(each.receiver, 0.0)"),
    ("sends before it has computed", "max(each.time, ", "max("),
    (
        "sends when all is computed",
        LOOP,
        "    computed = [*computed]\n    for each in computed:\n        begins = max(computed[-1].time, ",
    ),
    ("all engines share one link", f"max(each.time, {BUSY})", "max(each.time, 0.0, *free.values())"),
    ("forgets when sending began", "= begins + each.tokens", "= each.time + each.tokens"),
    ("here when sending begins", " = begins + ", " = begins\n        free[each.receiver] = begins + "),
    part="serving",
    inside="arrivals",
)

# Task 4.
FOLLOWS = "0 <= block.start <= self.received"
NEW = "        new = range(self.received, min(block.stop, self.wanted))\n"
COUNTED = "        self.received = max(self.received, new.stop)\n"
CHECK = "        if digest != text_digest(self.tokens[: block.stop]):\n"
REFUSES = '            raise Refused("it has computed another text")\n'
MOVED = "        self.deadline = now + self.patience\n"
TAKES = wrong(
    "4.6.4",
    FOLDER + "incoming.py",
    ("late at the deadline itself", "now > self.deadline", "now >= self.deadline", "Incoming.is_late"),
    ("takes what follows a gap", FOLLOWS, "0 <= block.start"),
    ("refuses what has come before", FOLLOWS, "0 <= block.start == self.received"),
    ("takes the prompt's last token", "min(block.stop, self.wanted)", "block.stop"),
    ("takes what it has again", "range(self.received, ", "range(block.start, "),
    ("takes any text", CHECK + REFUSES, ""),
    ("counts before it checks", CHECK + REFUSES + NEW + COUNTED, NEW + COUNTED + CHECK + REFUSES),
    ("old news is none", MOVED, "        self.deadline = now + self.patience if new else self.deadline\n"),
    part="serving",
    inside="Incoming.accept",
)

# Task 5.
SHAPED = ".reshape(len(pools), 2, -1, heads, size)[:, :, part]"
OURS = ".reshape(len(pools), -1, pools[0].page_size, heads, size)[:, :2, part]"
BY_HEADS = ".reshape(len(pools), 2, heads, -1, size).swapaxes(2, 3)[:, :, part]"
BY_PARTS = ".reshape(2, len(pools), -1, heads, size).swapaxes(0, 1)[:, :, part]"
ADOPTS = [
    *wrong(
        "4.6.5",
        "received_rows.py",
        ("values before keys", "(keys, values) in", "(values, keys) in"),
        ("rows are as long as our own blocks", SHAPED, OURS),
        ("heads before tokens", SHAPED, BY_HEADS),
        ("all keys before all values", SHAPED, BY_PARTS),
        ("the first tokens of a row", "[:, :, part]", "[:, :, : part.stop - part.start]"),
        ("one layer for all", "zip(pools, layers, strict", "zip(pools, [layers[0]] * len(pools), strict"),
        ("slots are neighbours", "write(slots, ", "write(slots[0] + xp.arange(slots.shape[0]), "),
        inside="adopt_row",
    ),
    Mutant(
        "4.6.5",
        "the bits of bf16 are whole numbers",
        "received_rows.py",
        mlx=("view(getattr(mx, kind))", 'view(mx.int16 if kind == "bfloat16" else getattr(mx, kind))'),
        torch=(
            "dtype=getattr(torch, kind)",
            'dtype=torch.int16 if kind == "bfloat16" else getattr(torch, kind)',
        ),
        inside="adopt_row",
    ),
]

# Task 6.
KNOWN = "        cached = self.decode.cached(prompt)\n"
CHOSEN = "        decode = self.decode.send(request, prompt, max_tokens)\n"
AGAIN = "        self.decode.send(request, (), max_tokens, among=[decode])\n"
ROUTES = wrong(
    "4.6.6",
    FOLDER + "split_loads.py",
    ("compares the whole prompt", "len(prompt) - cached[decode] < ", "len(prompt) < "),
    ("a prompt of `least` tokens is short", "< self.least", "<= self.least"),
    ("looks for prefixes when it has sent them", KNOWN + CHOSEN, CHOSEN + KNOWN),
    ("any engine's past will do", "cached[decode]", "max(cached.values())"),
    ("the prompt is work for both", AGAIN, ""),
    ("the answer is work for both", "prompt, 0)", "prompt, max_tokens)"),
    ("chooses who decodes by load alone", "(request, prompt, max_tokens)", "(request, (), max_tokens)"),
    ("chooses twice who decodes", ", among=[decode]", ""),
    part="serving",
    inside="SplitLoads.send",
)

MUTANTS = [*SAVES, *EXPIRES, *ARRIVALS, *TAKES, *ADOPTS, *ROUTES]
