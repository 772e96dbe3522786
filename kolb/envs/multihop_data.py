"""Questions with their paragraphs, from files in HotpotQA's distractor format (arXiv:1809.09600).

Both shapes are read, from a JSON list or JSONL: ``context`` as the original's ``[[title, [sentence, ...]], ...]``, or as
Hugging Face's ``{"title": [...], "sentences": [[...], ...]}``; ``supporting_facts`` likewise. ``_id`` or ``id``,
``type`` and ``level`` are kept where they are given. ``answer`` may also be a list of answers that are all right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from kolb.envs.base import hashed_split
from kolb.envs.rows import read_rows
from kolb.errors import RecipeError

FIXTURE: Mapping[str, str] = {
    split: str(Path(__file__).parent / "data" / f"multihop_{split}.json")
    for split in ("train", "dev", "test")
}
"""Kolb's own questions, a file per split. The people and places in them are invented."""

TAGS = ("type", "level")
WAY_OUT = (
    "HotpotQA's files are linked at https://hotpotqa.github.io (hotpot_train_v1.1.json, "
    "hotpot_dev_distractor_v1.json); without `questions`, kolb's own few are taken"
)


@dataclass(frozen=True)
class Question:
    """One question: the answers that are right, the paragraphs (title, text) that may be searched, the titles of
    those that the answer rests on (in order, each once; empty where the file does not say)."""

    id: str
    text: str
    answers: tuple[str, ...]
    paragraphs: tuple[tuple[str, str], ...]
    supporting: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def split(self) -> str:
        """Where the question goes when a single file is divided: by its text, so that it stays there."""
        return hashed_split(self.text)


def locate(path: str, what: str) -> Path:
    """The file, or RecipeError with the place where HotpotQA's files are."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise RecipeError(f"{what} = {path!r}: there is no file {file.absolute()}. {WAY_OUT}")
    return file.resolve()


@lru_cache(maxsize=8)
def read_questions(file: Path) -> tuple[Question, ...]:
    """All questions of a file. RecipeError with file and line (in a JSON list: the place in it)."""
    seen: dict[str, str] = {}
    questions = []
    for number, row in read_rows(file):
        where = f"{file}:{number}"
        question = _question(row, str(number), where)
        if question.id in seen:
            raise RecipeError(f"{where}: the id {question.id!r} is that of {seen[question.id]} too")
        seen[question.id] = where
        questions.append(question)
    return tuple(questions)


def _question(row: Mapping[str, Any], number: str, where: str) -> Question:
    text = row.get("question")
    if not isinstance(text, str) or not text.strip():
        raise RecipeError(f"{where}: question must be text, given {text!r:.80}")
    return Question(
        id=str(row.get("_id", row.get("id", number))),
        text=text.strip(),
        answers=_answers(row.get("answer"), where),
        paragraphs=_paragraphs(row.get("context"), where),
        supporting=_supporting(row.get("supporting_facts"), where),
        tags={name: str(row[name]) for name in TAGS if name in row},
    )


def _answers(value: Any, where: str) -> tuple[str, ...]:
    answers = value if isinstance(value, list) else [value]
    if not answers or not all(isinstance(a, str) and a.strip() for a in answers):
        raise RecipeError(
            f"{where}: answer must be text or a list of texts, given {value!r:.80}. HotpotQA's own test "
            "file has no answers; its dev file has"
        )
    return tuple(a.strip() for a in answers)


def _paragraphs(value: Any, where: str) -> tuple[tuple[str, str], ...]:
    pairs = _pairs(value, "sentences", f"{where}: context")
    for title, sentences in pairs:
        is_text = isinstance(sentences, list) and all(isinstance(s, str) for s in sentences)
        if not is_text:
            raise RecipeError(
                f"{where}: context: the sentences of {title!r} must be a list of texts, given "
                f"{sentences!r:.80}"
            )
    if not pairs:
        raise RecipeError(f"{where}: context is empty, so there is nothing to search")
    # HotpotQA's sentences begin with a space where one belongs; other files' do not.
    return tuple((title, " ".join(" ".join(sentences).split())) for title, sentences in pairs)


def _supporting(value: Any, where: str) -> tuple[str, ...]:
    pairs = [] if value is None else _pairs(value, "sent_id", f"{where}: supporting_facts")
    return tuple(dict.fromkeys(title for title, _ in pairs))


def _pairs(value: Any, second: str, what: str) -> list[tuple[str, Any]]:
    """(title, other) of a list of pairs, or of a table with two columns of one length."""
    if isinstance(value, Mapping):
        titles, others = value.get("title"), value.get(second)
        if isinstance(titles, list) and isinstance(others, list) and len(titles) == len(others):
            value = [list(pair) for pair in zip(titles, others, strict=True)]
    is_pairs = isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in value
    )
    if not is_pairs:
        raise RecipeError(
            f'{what}: expected [[title, {second}], ...] or {{"title": [...], "{second}": [...]}} with '
            f"columns of one length, given {value!r:.80}"
        )
    return [(pair[0], pair[1]) for pair in value]
