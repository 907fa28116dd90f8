"""Wrong solutions of Week 1 Day 5."""

from authors.mutants import Mutant

ATTEND = "x = x + self.self_attn(self.input_layernorm(x), mask)"
HEAD = "return self.embedding.as_linear(x) if self.w_lm_head is None else linear(x, self.w_lm_head)"
MODEL = "qwen3_week1.py"


def _block(idea: str, old: str, new: str) -> Mutant:
    return Mutant("1.5.3", idea, MODEL, both=(old, new))


def _model(idea: str, old: str, new: str) -> Mutant:
    return Mutant("1.5.4", idea, MODEL, both=(old, new))


MUTANTS = [
    Mutant(
        "1.5.1",
        "hands out float32 rows of a bf16 table",
        "basics.py",
        mlx=("return self.weight[ids]", "return self.weight[ids].astype(mx.float32)"),
        torch=("return self.weight[ids]", "return self.weight[ids].float()"),
    ),
    Mutant(
        "1.5.2",
        "multiplies by the table and not by its transpose, when the shapes allow it",
        "basics.py",
        both=(
            "linear(x, self.weight)",
            "linear(x, self.weight.T if self.vocab_size == self.embedding_dim else self.weight)",
        ),
        inside="Embedding.as_linear",
    ),
    Mutant(
        "1.5.2",
        "float32 logits of a bf16 table",
        "basics.py",
        mlx=("linear(x, self.weight)", "linear(x.astype(mx.float32), self.weight.astype(mx.float32))"),
        torch=("linear(x, self.weight)", "linear(x.float(), self.weight.float())"),
        inside="Embedding.as_linear",
    ),
    _block(
        "adds in place, to the caller's array", ATTEND, "x += self.self_attn(self.input_layernorm(x), mask)"
    ),
    _block(
        "is causal whatever mask it is given",
        ATTEND,
        'x = x + self.self_attn(self.input_layernorm(x), "causal")',
    ),
    _model(
        "scores with the embedding although the model has a head", HEAD, "return self.embedding.as_linear(x)"
    ),
    Mutant(
        "1.5.4",
        "widens to float32 on the way",
        MODEL,
        mlx=("x = self.embedding(inputs)", "x = self.embedding(inputs).astype(mx.float32)"),
        torch=(HEAD, HEAD.replace("return ", "logits = ") + "\n        return logits.float()"),
    ),
    _model(
        "the last norm has the default eps",
        "RMSNorm(hidden_size, norm, config.rms_norm_eps)",
        "RMSNorm(hidden_size, norm)",
    ),
]
