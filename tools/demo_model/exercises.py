"""Small talk written by hand, and exercises whose answers are computed: sums, counting, sorting, JSON, lists, repeating, a name."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from messages import Exchange

_DATA = json.loads(Path(__file__).with_suffix(".json").read_text())
SMALL_TALK, WORDS, NAMES, CITIES = _DATA["small_talk"], _DATA["words"], _DATA["names"], _DATA["cities"]


def small_talk(rng: Random) -> Exchange:
    """One of the hand-written exchanges."""
    topic = rng.choice(SMALL_TALK)
    return Exchange(rng.choice(topic["asked"]), "This is a simple question; I answer it directly.", rng.choice(topic["answered"]))


def exercise(rng: Random) -> Exchange:
    """One exercise with its computed answer."""
    return rng.choice(_EXERCISES)(rng)


def _sum(rng: Random) -> Exchange:
    a, b, sign = rng.randint(0, 60), rng.randint(0, 60), rng.choice("+-")
    term = f"{a} {sign} {b}"
    question = rng.choice([f"What is {term}?", f"Compute {term}.", f"{term} = ?"])
    return Exchange(question, f"I compute {term}.", f"{term} = {a + b if sign == '+' else a - b}")


def _count_up(rng: Random) -> Exchange:
    first = rng.randint(1, 20)
    last = first + rng.randint(3, 20)
    return Exchange(f"Count from {first} to {last}.", None, ", ".join(map(str, range(first, last + 1))))


def _sort(rng: Random) -> Exchange:
    words = _words(rng, 8)
    request = rng.choice(["Sort these words: ", "Put these words in alphabetical order: "])
    return Exchange(request + ", ".join(words), "I order the words by their first letters.", ", ".join(sorted(words)))


def _json_object(rng: Random) -> Exchange:
    name, age, city = rng.choice(NAMES), rng.randint(5, 90), rng.choice(CITIES)
    wordings = [
        f"Write a JSON object for {name}, aged {age}, who lives in {city}.",
        f"Give me JSON with name {name}, age {age} and city {city}.",
    ]
    return Exchange(rng.choice(wordings), None, json.dumps({"name": name, "age": age, "city": city}))


def _repeat(rng: Random) -> Exchange:
    text = " ".join(rng.choices(WORDS, k=rng.randint(4, 16)))
    return Exchange(rng.choice([f"Repeat this: {text}", f"Say exactly: {text}"]), None, text)


def _count_words(rng: Random) -> Exchange:
    words = _words(rng, 8)
    question = f"How many words are in this list: {', '.join(words)}?"
    return Exchange(question, f"I count the words: {len(words)}.", f"There are {len(words)} words in the list.")


def _python_list(rng: Random) -> Exchange:
    words = _words(rng, 7)
    return Exchange(f"Write a Python list with these words: {', '.join(words)}", None, f"```python\nwords = {json.dumps(words)}\n```")


def _bullets(rng: Random) -> Exchange:
    words = _words(rng, 9)
    return Exchange(f"Make a bullet list of: {', '.join(words)}", None, "\n".join(f"- {word}" for word in words))


def _recall_name(rng: Random) -> Exchange:
    name, age = rng.choice(NAMES), rng.randint(5, 90)
    question = f"My name is {name} and I am {age} years old. What is my name?"
    return Exchange(question, f"The user said the name: {name}.", f"Your name is {name}.")


def _words(rng: Random, most: int) -> list[str]:
    return rng.sample(WORDS, rng.randint(3, most))


_EXERCISES = (_sum, _count_up, _sort, _json_object, _repeat, _count_words, _python_list, _bullets, _recall_name)
