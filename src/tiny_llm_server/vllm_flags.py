"""The command line of `vllm serve` for ours: a file, the environment, other names, and flags without effect."""

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tiny_llm_engine.known_arguments import check_argument
from tiny_llm_engine.models.weights.random_weights import SHAPES
from tiny_llm_extensions.vllm_arguments import ALONE, ARGUMENTS, DTYPES, SERVER_ARGUMENTS

PREFIX = "TINY_LLM_SERVE_"  # of variables: TINY_LLM_SERVE_MAX_NUM_SEQS is --max-num-seqs
YAML = (".yaml", ".yml")
OTHER_NAMES = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-asc": "--api-server-count",
    "-q": "--quantize",
    "-O": "--optimization-level",
    "-cc": "--compilation-config",
    "--quantization": "--quantize",
    "--num-gpu-blocks-override": "--num-blocks",
}


def expanded(
    parser: argparse.ArgumentParser, argv: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    """The command line with what the environment and files say before it, so that what was typed wins.

    Says in one line which flags of vLLM's have no effect here.

    Raises:
        ValueError: a file or a variable cannot be read, or a flag of vLLM's would change something.
    """
    known = known_options(parser)
    files, typed = without_files([*renamed(argv)])
    words = [*words_of_environment(known, environment)]
    for file in files:
        words += words_of_file(known, file)
    kept, ignored = without_vllms(known, [*words, *typed])
    if ignored:
        print(f"no effect here: {', '.join(ignored)}", file=sys.stderr)
    return kept


def known_options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The options of a parser by each of their names."""
    return {name: action for action in parser._actions for name in action.option_strings}


def renamed(argv: Sequence[str]) -> Iterator[str]:
    """Words with our names of options; vLLM takes "_" for "-" too."""
    before = ""
    for word in argv:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            name = name.replace("_", "-")
        name = OTHER_NAMES.get(name, name)
        if before == "--dtype":
            name = DTYPES.get(name, name)
        elif name == "--dtype":
            value = DTYPES.get(value, value)
        before = name
        yield f"{name}{equals}{value}"


def without_files(words: list[str]) -> tuple[list[str], list[str]]:
    """The files of `--config FILE.yaml`, and the other words.

    Raises:
        ValueError: it is neither such a file nor a shape.
    """
    files, others, rest = [], [], list(words)
    while rest:
        word = rest.pop(0)
        if word == "--config" and rest:
            word = f"{word}={rest.pop(0)}"
        name, _, value = word.partition("=")
        is_file = name == "--config" and value.endswith(YAML)
        if name == "--config" and not is_file and value not in SHAPES:
            fitting = f"a file that ends in .yaml or .yml, or a shape, {' or '.join(sorted(SHAPES))}"
            raise ValueError(f"--config {value}: give {fitting}")
        (files if is_file else others).append(value if is_file else word)
    return files, others


def words_of_file(known: Mapping[str, argparse.Action], file: str) -> list[str]:
    """The words that a YAML file of options stands for.

    Raises:
        ValueError: it cannot be read, or is not a mapping.
    """
    import yaml  # of huggingface_hub

    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--config {file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"--config {file}: {' '.join(str(error).split())[:200]}; correct it") from None
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ValueError(f"--config {file}: give a mapping of options to values, such as `port: 8000`")
    words = [word for name, value in content.items() for word in words_of(known, name, value)]
    return [*renamed(words)]


def words_of(known: Mapping[str, argparse.Action], name: str, value: object) -> list[str]:
    """The words of one option with a value of YAML."""
    option = f"--{name.replace('_', '-')}"
    if value is False or value is None:
        negative = option.replace("--", "--no-", 1)
        return [negative] if value is False and negative in known else []
    if value is True:
        return [option]
    if isinstance(value, dict):
        return [f"{option}={json.dumps(value)}"]
    listed = value if isinstance(value, list) else [value]
    return [option, *map(str, listed)] if len(listed) != 1 else [f"{option}={listed[0]}"]


def words_of_environment(
    known: Mapping[str, argparse.Action], environment: Mapping[str, str]
) -> Iterator[str]:
    """The words that variables stand for.

    Raises:
        ValueError: there is no option of such a name, or it is on or off and the value is neither.
    """
    for variable in sorted(environment):
        if not variable.startswith(PREFIX):
            continue
        name, value = variable.removeprefix(PREFIX).lower().replace("_", "-"), environment[variable]
        action = known.get(OTHER_NAMES.get(f"--{name}", f"--{name}"))
        if action is None:
            raise ValueError(f"{variable}: there is no option --{name}; see --help")
        if action.nargs == 0:
            if value.lower() not in ("0", "1", "false", "true"):
                raise ValueError(f"{variable} is {value!r}: give 0 or 1")
            yield from words_of(known, name, value.lower() in ("1", "true"))
        elif action.nargs == "+":
            yield from (f"--{name}", *shlex.split(value))
        else:
            yield f"--{name}={value}"


def without_vllms(known: Mapping[str, argparse.Action], words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words without flags of vLLM's that change nothing here, and the names of these.

    Raises:
        ValueError: one of them would change something.
    """
    table, kept, ignored, rest = {**ARGUMENTS, **SERVER_ARGUMENTS}, [], [], list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        negated = name.removeprefix("no_")
        if not flag.startswith("--") or flag in known or negated not in table:
            kept.append(word)
            continue
        values, reason = table[negated]
        if name != negated:
            given: object = False
        elif equals:
            given = plain(value)
        elif stands_alone(negated, values) or not rest or is_flag(rest[0]):
            given = True
        else:
            given = plain(rest.pop(0))
        check_argument(f"--{negated.replace('_', '-')}", given, values, reason)
        ignored.append(flag)
    return kept, ignored


def stands_alone(name: str, values: tuple[object, ...]) -> bool:
    """Whether a flag takes no value in vLLM."""
    return name in ALONE or (bool(values) and all(isinstance(value, bool) for value in values))


def is_flag(word: str) -> bool:
    """Whether a word is a flag, and no negative number."""
    return word.startswith("-") and not word[1:2].isdigit()


def plain(text: str) -> object:
    """A value as vLLM reads it: JSON, or else a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
