"""The incidents of the starvation corpus, with traces of our own.

The threads have the engines' own figures.

A step costs 10 ms and 0.1 ms for each token of a prompt: 61.2 ms for a full one of 512. Where nothing else is said,
there are 512 tokens in a step, 8 requests run, blocks have 16 tokens and are plenty, and an answer may pause for 62 ms.
Incident 16 is about two replicas, and has a file of its own: `routing.py`.
"""

from .incident import Incident, Sent, case, group

STEP = 61.2  # ms of a full step
A = Sent("A", 0, 16, 200)
LONG = Sent("L", 100, 16_384, 4)
LOW = group(4, Sent("b", 0, 16, 500, priority="batch"))
HEAVY = (Sent("D", 0, 1_200, 200), Sent("H", 20, 800, 1))

# A table: number, title, threads; the mechanism; a line or two for each case.
# fmt: off
CORPUS = (
    Incident.of(1, "endless arrivals", "sgl-project/sglang#32549",
        "A prompt that has just arrived always goes before the answers that are running.",
        case(Sent("A", 0, 16, 50), *group(40, Sent("P", 20, 500, 1), every=55), bounds={"gap A": STEP + 10})),
    Incident.of(2, "a prompt freezes everybody", "ROCm/ATOM#1835 FlashML-org/FreeToken#483",
        "The scheduler is content with a step as soon as it has placed a chunk in it.",
        case(A, LONG, bounds={"gap A": 62, "ttft L": 1.25 * 32 * STEP})),
    Incident.of(3, "steps of one kind", "tenstorrent/tt-inference-server#4335 tenstorrent/vllm-tt-plugin#119",
        "The device computes either prompts or decodes, and prompts may take any number of turns in a row.",
        case(A, LONG, bounds={"gap A": 133, "ttft L": 1.1 * 1_960}, target=133, options={"mixed_steps": False})),
    Incident.of(4, "one prompt in progress", "sgl-project/sglang#34623 vllm-project/vllm#10235",
        "The prompt that was begun first owns all chunks until it is done.",
        case(Sent("L", 0, 16_384, 4), Sent("s", 100, 100, 4),
            bounds={"ttft s": 3 * STEP, "ttft L": 1.25 * 32 * STEP})),
    Incident.of(5, "the budget is the stall", "ggml-org/llama.cpp#29175",
        "Every step is filled to its budget, whatever waits for its next token, so a larger budget is a longer pause.",
        *(case(Sent("A", 0, 16, 300), Sent("L", 100, 8_192, 1),
            bounds={"gap A": 62, "ttft L": 1.25 * 16 * STEP}, options={"max_num_batched_tokens": budget},
            says=f"budget {budget:,}") for budget in (512, 2_048, 8_192))),
    Incident.of(6, "a cap each, none for all", "kekzl/imp#1643",
        "Each prompt in progress gets a chunk of its own in every step. Equal shares of one budget are no cure either.",
        case(Sent("d", 0, 16, 300), *group(8, Sent("p", 100, 4_096, 1)),
            bounds={"prompt_tokens *": 512, "gap d": 62}, options={"max_num_seqs": 16}),
        case(*group(8, Sent("p", 0, 4_096, 1)), bounds={"mean_ttft p*": 2_300},
            says="no request decodes: shares would let all of them end last")),
    Incident.of(7, "cure that starves prompts", "MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#6 vllm-project/vllm#44794",
        "Prompts are left out while any request decodes.",
        case(Sent("D", 0, 16, 2_000), Sent("s", 50, 600, 1), bounds={"ttft s": 10 * 20})),
    Incident.of(8, "admitted by first chunk", "vllm-project/vllm#37307",
        "A prompt begins when its first chunk has room, and is evicted halfway, again and again.",
        case(*group(4, Sent("A", 0, 4_000, 300)), Sent("E", 100, 4_000, 300),
            bounds={"preemptions *": 1, "end *": 9_000}, blocks=1_150)),
    Incident.of(9, "hold and wait", "deepspeedai/DeepSpeed-MII#339 deepspeedai/DeepSpeed-MII#403",
        "Two prompts hold parts of the memory, and each waits for the other's.",
        case(*group(2, Sent("A", 0, 6_400, 200)), bounds={"preemptions *": 1, "end *": 6_500}, blocks=600)),
    Incident.of(10, "a head that never fits", "vllm-project/vllm#39734",
        "The first request in the queue needs more memory than there is, and is not refused.",
        *(case(Sent("X", 0, prompt, answer), Sent("s", 10, 100, 4),
            bounds={"refused X": (1, 1), "ttft s": 2 * STEP}, blocks=100,
            says=f"a prompt of {prompt:,}, an answer of {answer:,}") for prompt, answer in ((2_000, 4), (400, 1_500)))),
    Incident.of(11, "blocks not back yet", "vllm-project/vllm-ascend#16315",
        "Evicting one request shows no free block at once, so the next one is evicted as well, and the next.",
        case(*group(3, Sent("A", 0, 790, 40)), bounds={"preemptions *": 1, "end *": 1_500, "gap A0": 100},
            blocks=150, watermark=0.0, options={"max_num_batched_tokens": 4_096}, target=1_000, late_frees=True)),
    Incident.of(12, "a chunk without memory", "sgl-project/sglang#30743",
        "A prompt in progress is given its next chunk when no block is free.",
        case(Sent("D", 0, 1_200, 200), Sent("L", 20, 800, 1),
            bounds={"gap D": 62, "ttft L": 2_400, "preemptions *": 1}, blocks=100)),
    Incident.of(13, "inversion at the slots", "vllm-project/vllm#40004 vllm-project/vllm#54530",
        "Preemption looks only at memory: when all slots are taken, the urgent request waits for a slow one.",
        case(*LOW, Sent("vip", 100, 16, 10), bounds={"ttft vip": 40, "preemptions *": 1},
            options={"max_num_seqs": 4}),
        case(*LOW, *group(3, Sent("vip", 100, 16, 10)), bounds={"ttft vip*": 40, "preemptions *": 1},
            options={"max_num_seqs": 4}, says="three at once"),
        case(*LOW, Sent("late", 100, 16, 10, priority="batch"), bounds={"preemptions *": 0},
            options={"max_num_seqs": 4}, says="equals never preempt each other")),
    Incident.of(14, "an adapter never loaded", "sgl-project/sglang#15129 vllm-project/vllm#15422",
        "Requests for the adapter that is loaded go first for as long as there are any.",
        case(*group(100, Sent("a", 0, 16, 20, adapter="A"), every=10), Sent("b", 1, 16, 20, adapter="B"),
            bounds={"ttft b": 300}, adapters=True),
        case(Sent("long", 0, 16, 500, adapter="A"), Sent("b", 1, 16, 20, adapter="B"),
            *group(5, Sent("a", 20, 16, 20, adapter="A"), every=100), bounds={"ttft a*": 100, "ttft b": 5_300},
            adapters=True, says="the loaded one is busy for long: stopping all requests wastes it")),
    Incident.of(15, "a place never given back", "InternLM/lmdeploy#1788 sgl-project/mini-sglang#15",
        "A client that leaves keeps its slot.",  # they wait, prefill or decode
        *(case(*group(6, Sent("x", 0, 4_096, 10**6, aborted=at)), Sent("s", at + 10, 16, 4),
            bounds={"ttft s": 2 * STEP}, blocks=2**16, options={"max_num_seqs": 4},
            says=f"clients leave after {at:,.0f} ms") for at in (300, 3_000))),
    Incident.of(17, "memory blocks the queue", "vllm-project/vllm#31731",
        "The first request has no room, and small ones after it wait although theirs is free.",
        case(*HEAVY, *group(4, Sent("s", 50, 100, 4), every=50), bounds={"ttft s*": 3 * STEP, "ttft H": 2_500},
            blocks=100)),
    Incident.of(18, "room for the smaller only", "torch-spyre/sendnn-inference#440",
        "Small requests pass a large one for as long as they come.",
        case(Sent("D", 0, 1_200, 100), Sent("H", 20, 800, 1), *group(99, Sent("q", 30, 200, 20), every=20),
            bounds={"ttft H": 2_000}, blocks=100)),
    Incident.of(19, "preference without ageing", "sgl-project/sglang#31954",
        "Cheap requests go first whatever the dear one has waited, so it waits until none arrives.",
        case(Sent("L", 0, 8_192, 1), *group(100, Sent("p", 10, 500, 1), every=50),
            bounds={"ttft L": 3 * 16 * STEP, "mean_ttft p*": 1_500})),
    Incident.of(20, "one batch after the other", "triton-inference-server/tensorrtllm_backend#442",
        "Requests join only when those that run have ended.",
        case(*group(4, Sent("A", 0, 100, 300)), *group(4, Sent("B", 500, 100, 300)),
            bounds={"ttft B*": 2 * STEP})),
    Incident.of(21, "preempted and forgotten", "vllm-project/vllm#41951",
        "A preempted request queues again among those that never began, and they take its memory.",
        case(*group(2, Sent("A", 0, 400, 300)), *group(20, Sent("n", 100, 300, 100), every=100),
            bounds={"gap A*": 3_000, "preemptions A*": 1}, blocks=64)),
)
# fmt: on


def incident(number: int) -> Incident:
    """The incident with this number."""
    return next(one for one in CORPUS if one.number == number)
