"""Varies how a question is asked, so that the model listens to its words and not to its exact form."""

import re
from random import Random

# The order of these lists decides what is drawn: in another one the shipped model cannot be trained again.
_OPENINGS = (
    "Please: |Hi! |Hey, |Hello, |Quick question: |Sorry, |Ok, |Okay, |So, |So |And |Can you tell me: |"
    "I would like to know: |One more question: |Tell me, |In short, "
)
OPENINGS = _OPENINGS.split("|")
ENDINGS = (" Please.", " Thanks!", " In short, please.", " In simple words.", " Thank you.")
SMALL_WORDS = re.compile(
    r"\b(a|an|the|is|are|do|does|of|in|for|to|my|I|we|with|this|it|by|at|be)\b ", re.IGNORECASE
)
SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnprstvw" for vowel in ("a", "e", "in", "o", "ur")]
_SWAPS = (
    "What is > What's | Why do we > Why do I | Why do > Why should | How do I > How can I | How do I > How do we | "
    "How do I > How should I | How do I > How to | Which > What | What is > Describe | What is > What exactly is | "
    "quantis > quantiz | How large > How big | Why is > Why would | What happens > What goes on | "
    "Explain > Describe | What is > Give me a short explanation of | Explain > Give me an explanation of | "
    "Can I > May I | Can I > Is it possible to | Which day > What day | normalis > normaliz | "
    "What is > How would you describe"
)
SWAPS = [pair.split(" > ") for pair in _SWAPS.split(" | ")]


def vary(ask: str, random: Random) -> str:
    """The question as somebody else might type it; four times in ten as it is written."""
    if random.random() < 0.4:
        return ask
    ask = _swap(ask, random)
    if random.random() < 0.2:
        ask = _drop_words(ask, random)
    if random.random() < 0.3:
        ask = _strange_word(ask, random)
    if random.random() < 0.15:
        ask = random.choice(OPENINGS) + (ask if random.random() < 0.5 else _uncapital(ask))
    if random.random() < 0.35:
        ask = _end_mark(ask, random)
    if random.random() < 0.05:
        ask += random.choice(ENDINGS)
    return _letters(ask, random)


def _swap(ask: str, random: Random) -> str:
    fitting = [pair for pair in SWAPS if pair[0] in ask]
    if not fitting or random.random() < 0.5:
        return ask
    old, new = random.choice(fitting)
    return ask.replace(old, new, 1)


def _drop_words(ask: str, random: Random) -> str:
    shorter = SMALL_WORDS.sub(lambda word: "" if random.random() < 0.5 else word[0], ask)
    return shorter or ask


def _strange_word(ask: str, random: Random) -> str:
    """With a word that nobody knows somewhere, or in the place of a small word: it should not matter."""
    words = ask.split(" ")
    strange = "".join(random.choice(SYLLABLES) for _ in range(random.randint(1, 3)))
    place = random.randrange(len(words) + 1)
    replaces = place < len(words) and SMALL_WORDS.fullmatch(words[place] + " ")
    words[place : place + bool(replaces)] = [strange]
    return " ".join(words)


def _end_mark(ask: str, random: Random) -> str:
    return ask.rstrip("?.! ") + random.choice(("", "", "?", " ?", "??", ".", "!"))


def _letters(ask: str, random: Random) -> str:
    roll = random.random()
    if roll < 0.15:
        return ask.lower()
    return _uncapital(ask) if roll < 0.35 else ask


def _uncapital(ask: str) -> str:
    return ask[:1].lower() + ask[1:]
