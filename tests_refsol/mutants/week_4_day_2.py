"""Wrong solutions of Week 4 Day 2."""

from authors.mutants import Edit, Mutant

ROUTER, PRODUCT, RANKS = "router.py", "grouped_product.py", "expert_parallel.py"
PLAN = "parallel/expert_exchange.py"


def plan(idea: str, *edit: str) -> Mutant:
    """A wrong `exchange_plan`."""
    old, new = edit
    return Mutant("4.2.5", idea, PLAN, serving=(old, new), inside="exchange_plan")


def ports(task: str, file: str, idea: str, mlx: Edit | None, torch: Edit | None) -> Mutant:
    """A wrong idea that the ports write differently, or that only one of them has."""
    return Mutant(task, idea, file, mlx=mlx, torch=torch)


SOFTMAX_MLX = "    probabilities = mx.softmax(logits.astype(mx.float32), axis=-1)\n"
TOPK_TORCH = "logits.float().softmax(dim=-1).topk(k, dim=-1)"
CHOSEN_TORCH = f"    weights, experts = {TOPK_TORCH}\n"
RETURN_MLX = "return experts, weights / weights.sum(axis=-1, keepdims=True) if renormalise else weights"
RETURN_TORCH = "return experts, weights / weights.sum(dim=-1, keepdim=True) if renormalise else weights"

ROUTERS = [
    ports(
        "4.2.1",
        ROUTER,
        "the softmax in the type of the logits",
        ("logits.astype(mx.float32)", "logits"),
        (TOPK_TORCH, TOPK_TORCH.replace(".float()", "")),
    ),
    ports(
        "4.2.1",
        ROUTER,
        "exp without subtracting the maximum",
        (
            SOFTMAX_MLX,
            "    grown = mx.exp(logits.astype(mx.float32))\n"
            "    probabilities = grown / grown.sum(axis=-1, keepdims=True)\n",
        ),
        (
            CHOSEN_TORCH,
            "    grown = logits.float().exp()\n"
            "    weights, experts = (grown / grown.sum(dim=-1, keepdim=True)).topk(k, dim=-1)\n",
        ),
    ),
    ports(
        "4.2.1",
        ROUTER,
        "equally probable experts are one",
        (
            RETURN_MLX,
            "experts = mx.where(weights == weights[:, :1], experts[:, :1], experts)\n    " + RETURN_MLX,
        ),
        (
            RETURN_TORCH,
            "experts = torch.where(weights == weights[:, :1], experts[:, :1], experts)\n    " + RETURN_TORCH,
        ),
    ),
    ports(
        "4.2.1",
        ROUTER,
        "reads the experts on the host",
        (
            RETURN_MLX,
            "experts = mx.array(experts.tolist(), mx.int32).reshape(weights.shape)\n    " + RETURN_MLX,
        ),
        (
            RETURN_TORCH,
            "experts = torch.tensor(experts.tolist()).reshape(weights.shape)\n    " + RETURN_TORCH,
        ),
    ),
]

SORT_TORCH = "pairs.argsort(stable=True)"
COUNTS_TORCH = "counts.scatter_add(0, pairs, torch.ones_like(pairs))"
COUNTS_MLX = "mx.zeros(num_experts, mx.int32).at[pairs].add(1)"

ORDERS = [
    ports(
        "4.2.2",
        ROUTER,
        "takes the pairs column by column",
        ("    pairs = experts.flatten()", "    pairs = experts.T.flatten()"),
        ("    pairs = experts.flatten()", "    pairs = experts.T.flatten()"),
    ),
    ports(
        "4.2.2",
        ROUTER,
        "counts on the host",
        (
            COUNTS_MLX,
            "mx.array([pairs.tolist().count(each) for each in range(num_experts)], mx.int32)",
        ),
        (COUNTS_TORCH, "torch.tensor([pairs.tolist().count(each) for each in range(num_experts)])"),
    ),
    ports(
        "4.2.2",
        ROUTER,
        "sorts experts as numbers of 8 bits",
        ("mx.argsort(pairs)", "mx.argsort(pairs.astype(mx.uint8))"),
        (SORT_TORCH, SORT_TORCH.replace("pairs.", "pairs.to(torch.uint8).")),
    ),
]

PRODUCTS_BOTH = "[w(rows) for rows, w in zip(parts, weights, strict=True) if len(rows)]"
NONE_MLX = " if outputs else mx.zeros((0, weights[0].shape[0]), x.dtype)"
NONE_TORCH = " if outputs else x.new_empty(0, weights[0].shape[0])"

PRODUCTS = [
    Mutant(
        "4.2.3",
        "multiplies every expert, with rows or without",
        PRODUCT,
        both=(PRODUCTS_BOTH, PRODUCTS_BOTH.replace(" if len(rows)", "")),
    ),
    ports(
        "4.2.3",
        PRODUCT,
        "no rows at all are float32",
        (NONE_MLX, NONE_MLX.replace(", x.dtype", "")),
        (NONE_TORCH, " if outputs else torch.zeros(0, weights[0].shape[0])"),
    ),
    ports(
        "4.2.3",
        PRODUCT,
        "results in float32",
        ("mx.concatenate(outputs)", "mx.concatenate(outputs).astype(mx.float32)"),
        ("torch.cat(outputs)", "torch.cat(outputs).float()"),
    ),
    ports(
        "4.2.3",
        PRODUCT,
        "the last expert first",
        ("mx.concatenate(outputs)", "mx.concatenate(outputs[::-1])"),
        ("torch.cat(outputs)", "torch.cat(outputs[::-1])"),
    ),
]

SUM_MLX = "(pairs.astype(mx.float32) * weights[..., None]).sum(axis=1).astype(outputs.dtype)"
SUM_TORCH = "(pairs.float() * weights[..., None]).sum(dim=1).to(outputs.dtype)"

SUMS = [
    ports(
        "4.2.4",
        ROUTER,
        "weights in the type of the outputs",
        (SUM_MLX, "(pairs * weights[..., None].astype(outputs.dtype)).sum(axis=1)"),
        (SUM_TORCH, "(pairs * weights[..., None].to(outputs.dtype)).sum(dim=1)"),
    ),
    ports(
        "4.2.4",
        ROUTER,
        "reads the order on the host",
        ("mx.argsort(order)", "mx.argsort(mx.array(order.tolist(), mx.int32))"),
        ("order.argsort()", "torch.tensor(order.tolist(), dtype=torch.int64).argsort()"),
    ),
]

EXPERTS = "[expert - mine.start for row in counts for expert in mine for _ in range(row[expert])]"

PLANS = [
    plan(
        "takes the rows expert by expert",
        EXPERTS,
        EXPERTS.replace("for row in counts for expert in mine", "for expert in mine for row in counts"),
    ),
]

ARRIVED = "arrived = group.all_to_all(rows, plan.sent, plan.received)"
MORE = "    outputs = compute(arrived[order], counts_here)\n"

EXCHANGES = [
    Mutant(
        "4.2.6",
        "computes the rows as they arrive",
        RANKS,
        both=("compute(arrived[order], counts_here)", "compute(arrived, counts_here)"),
    ),
    Mutant(
        "4.2.6",
        "a rank without rows does not take part",
        RANKS,
        both=(
            "    plan = exchange_plan(",
            "    if not len(rows):\n        return rows\n    plan = exchange_plan(",
        ),
    ),
    Mutant(
        "4.2.6",
        "a rank whose experts get nothing does not answer",
        RANKS,
        both=(MORE, "    if not len(arrived):\n        return rows\n" + MORE),
    ),
    ports(
        "4.2.6",
        RANKS,
        "gathers all rows, and computes those of its experts",
        (ARRIVED, ARRIVED + "\n    group.all_gather(mx.pad(rows, [(0, 64 - len(rows)), (0, 0)]))"),
        (
            ARRIVED,
            ARRIVED + "\n    group.all_gather(torch.nn.functional.pad(rows, (0, 0, 0, 64 - len(rows))))",
        ),
    ),
    ports(
        "4.2.6",
        RANKS,
        "gathers counts in the type of the rows",
        ("all_gather(counts)", "all_gather(counts.astype(rows.dtype)).astype(mx.int32)"),
        ("all_gather(counts)", "all_gather(counts.to(rows.dtype)).long()"),
    ),
]

MUTANTS = [
    *ROUTERS,
    *ORDERS,
    *PRODUCTS,
    *SUMS,
    *PLANS,
    *EXCHANGES,
]
