"""Special and added tokens of a model folder, from all files in which transformers looks for them."""

from collections.abc import Container
from pathlib import Path

import tokenizers
from tokenizers import AddedToken

from .files import CheckpointError, Json, read_optional_json, shown

EXTRA = ("extra_special_tokens", "additional_special_tokens")  # the newer and the older name
STANDARD = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Tokens of transformers' classes, for files that name none.
OF_CLASS = {
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "Qwen2Tokenizer": dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
    "GPT2Tokenizer": dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
}


def add_special_tokens(
    folder: Path, settings: Json, bpe: tokenizers.Tokenizer, rows: int | None
) -> dict[str, str]:
    """Add to a tokenizer what other files than `tokenizer.json` add to it.

    Args:
        settings: of `tokenizer_config.json`.
        rows: of the embedding, if known. A token without a row is not added: no model can read it.

    Returns:
        The tokens with names, which are variables of chat templates: `bos_token`, `eos_token`, …

    Raises:
        CheckpointError: a file is broken, or an end token is not in the vocabulary.
    """
    added, extra = settings.get("added_tokens_decoder"), _extra(settings)
    if not isinstance(added, dict):  # transformers reads older checkpoints' files only without this list
        older = read_optional_json(folder / "special_tokens_map.json")
        settings, more = {**settings, **older}, older.get(EXTRA[0])
        extra = (
            [*extra, *more] if isinstance(extra, list) and isinstance(more, list) else extra or _extra(older)
        )
        ids = read_optional_json(folder / "added_tokens.json")
        added = {id: text for text, id in sorted(ids.items(), key=lambda pair: str(pair[1]).zfill(9))}
    given = {
        name: settings[name] for name in sorted(settings, key=_standard_first) if name.endswith("_token")
    }
    given |= extra if isinstance(extra, dict) else {}
    others = extra if isinstance(extra, list) else []
    named = {name: text for name, token in given.items() if (text := _text(token))}
    special = {*named.values(), *map(_text, others)}
    tokens = [_added(token, special) for token in [*added.values(), *given.values(), *others] if _text(token)]
    _add(bpe, tokens, set(named.values()), rows)
    defaults = OF_CLASS.get(str(settings.get("tokenizer_class")).removesuffix("Fast"), {})
    named = {name: text for name, text in defaults.items() if bpe.token_to_id(text) is not None} | named
    eos = named.get("eos_token")
    if eos is not None and bpe.token_to_id(eos) is None:
        raise CheckpointError(
            f"{folder / 'tokenizer_config.json'}: eos_token {shown(eos)} is not in tokenizer.json; download both again"
        )
    return named


def _extra(settings: Json) -> object:
    """Further special tokens: a list of them, or an object with a name for each."""
    return next((settings[name] for name in EXTRA if settings.get(name)), [])


def _standard_first(name: str) -> int:
    return STANDARD.index(name) if name in STANDARD else len(STANDARD)


def _text(token: object) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _added(token: object, special: Container[str | None]) -> AddedToken:
    """A token as the library adds it, with what the file says of spaces around it."""
    text, given = _text(token), token if isinstance(token, dict) else {}
    flags = {name: given.get(name) is True for name in ("single_word", "lstrip", "rstrip")}
    is_special = text in special or given.get("special") is True
    normalized = given.get("normalized", not is_special) is True
    return AddedToken(text, special=is_special, normalized=normalized, **flags)


def _add(bpe: tokenizers.Tokenizer, tokens: list[AddedToken], named: set[str], rows: int | None) -> None:
    """Add tokens that the tokenizer does not have as added ones; those of its vocabulary keep their ids."""
    known = {token.content: token for token in bpe.get_added_tokens_decoder().values()}
    for token in (known[text] for text in named & known.keys()):
        token.special = True  # whatever `tokenizer.json` says of a token with a name
        bpe.add_tokens([token])
    for token in {token.content: token for token in tokens if token.content not in known}.values():
        if bpe.token_to_id(token.content) is not None or rows is None or bpe.get_vocab_size() < rows:
            bpe.add_tokens([token])
