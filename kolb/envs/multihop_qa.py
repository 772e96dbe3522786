"""Questions that take two paragraphs to answer, with a search over the paragraphs that come with them.

The third world of the ERL paper (arXiv:2602.13949, experiments and appendix): HotpotQA with a search tool, a few
replies, and the reward of ``multihop_reward``. The files are read by ``multihop_data``.

Differences: the search is BM25 over the question's own paragraphs (ten in HotpotQA's distractor files), where the
paper searches all of Wikipedia by E5 embeddings; and it is called by ``<search>...</search>`` in the text, where the
paper's is a JSON tool, so that any chat model can call it. The closing line has ``PARTLY CORRECT`` too,
where the paper's knows only right, wrong and timed out, and it counts searches and replies.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kolb.envs.base import SPLITS, SingleUse
from kolb.envs.bm25 import Bm25
from kolb.envs.multihop_data import FIXTURE, Question, locate, read_questions
from kolb.envs.multihop_reward import Grade, boxed, grade
from kolb.errors import RecipeError, at_least, nearest
from kolb.types import Environment, Message, StepResult, Task, derive_seed


@dataclass(frozen=True)
class MultihopQa:
    """Options of the questions. The defaults are the paper's, on kolb's own few questions.

    ``questions`` names a file in HotpotQA's distractor format. A table gives a file per split:
    ``{train = "hotpot_train_v1.1.json", test = "hotpot_dev_distractor_v1.json"}``. A single file is divided by
    a hash of each question: 1 in 10 for ``test``, 1 in 10 for ``dev``. At most ``train_tasks`` (``dev_tasks``,
    ``test_tasks``) questions are used, from the top; 0: all of them.

    Every reply costs one of ``max_steps``, searches, answers and all others alike. A search shows the best
    ``top_k`` paragraphs of those that share a word with it.
    """

    questions: str | Mapping[str, str] = ""
    max_steps: int = 5
    top_k: int = 5
    train_tasks: int = 0
    dev_tasks: int = 0
    test_tasks: int = 0

    def __post_init__(self) -> None:
        at_least(1, max_steps=self.max_steps, top_k=self.top_k)
        at_least(
            0, train_tasks=self.train_tasks, dev_tasks=self.dev_tasks, test_tasks=self.test_tasks
        )
        if isinstance(self.questions, str):
            if self.questions:
                locate(self.questions, "questions")
            return
        for split, path in self.questions.items():
            if split not in SPLITS:
                raise RecipeError(f"questions: no split {split!r}{nearest(split, SPLITS)}")
            locate(path, f"questions.{split}")

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise RecipeError(f"no split {split!r}{nearest(split, SPLITS)}")
        count = {"train": self.train_tasks, "dev": self.dev_tasks, "test": self.test_tasks}[split]
        return [self._task(q, split) for q in self._read(split)[: count or None]]

    def environment(self, task: Task) -> Environment:
        return SingleUse(MultihopWorld(self, task))

    def expert(self, task: Task) -> list[str]:
        """A search for each supporting title (without any: for the question), then the boxed answer."""
        wanted = task.data["supporting"] or (task.prompt[-1]["content"],)
        searches = [
            f"I need to know about {title}.\n<search>{title}</search>"
            for title in wanted[: self.max_steps - 1]
        ]
        return [*searches, f"The paragraphs give the answer.\n{self.gold(task)}"]

    def gold(self, task: Task) -> str:
        return f"\\boxed{{{task.answer[0]}}}"

    def _read(self, split: str) -> Sequence[Question]:
        if isinstance(self.questions, str) and self.questions:
            file = locate(self.questions, "questions")
            found = [q for q in read_questions(file) if q.split == split]
        else:
            files = self.questions or FIXTURE
            if split not in files:
                raise RecipeError(
                    f"no questions for split {split!r}: add {split} = 'FILE.json' to questions"
                )
            found = read_questions(locate(files[split], f"questions.{split}"))
        if not found:
            raise RecipeError(
                f"split {split!r} is empty: questions = {self.questions!r} has none for it"
            )
        return found

    def _task(self, question: Question, split: str) -> Task:
        return Task(
            id=f"{split}/{question.id}",
            prompt=({"role": "system", "content": self._system}, _user(question.text)),
            answer=question.answers,
            seed=derive_seed("multihop_qa", question.text),
            tags=question.tags,
            data={"paragraphs": question.paragraphs, "supporting": question.supporting},
        )

    @cached_property
    def _system(self) -> str:
        return SYSTEM.format(replies=_count(self.max_steps, "reply", "replies"), form=FORM)


ENVIRONMENT = MultihopQa


class MultihopWorld:
    """One attempt at one question. All of its state is immutable or replaced, so ``fork`` copies it."""

    def __init__(self, options: MultihopQa, task: Task) -> None:
        self._options = options
        self._task = task
        self._index = Bm25([f"{title}\n{text}" for title, text in task.data["paragraphs"]])
        self._replies = 0
        self._searches = 0
        self._shown: frozenset[str] = frozenset()

    async def reset(self) -> tuple[Message, ...]:
        return self._task.prompt

    async def step(self, message: str) -> StepResult:
        """A reply with a search is a search, whatever else it holds: what follows was written without the results."""
        self._replies += 1
        query = search_of(message)
        if query is not None:
            return self._go_on(*self._search(query))
        answer = boxed(message)
        if answer is None:
            return self._go_on(UNREADABLE, f"{UNREADABLE} {FORM}")
        return self._end(grade(answer, self._task.answer), answer)

    async def fork(self) -> MultihopWorld:
        return copy.copy(self)

    def _search(self, query: str) -> tuple[str, str]:
        """What came of a search, and what it shows."""
        self._searches += 1
        paragraphs = self._task.data["paragraphs"]
        found = self._index.top(query, self._options.top_k)
        self._shown |= {paragraphs[place][0] for place, _ in found}
        if not found:
            return NOTHING, NOTHING
        shown = [
            f"[{number}] {paragraphs[place][0]} (score {score:.2f})\n{paragraphs[place][1]}"
            for number, (place, score) in enumerate(found, start=1)
        ]
        return f"The search found {_count(len(found), 'paragraph')}.", "\n\n".join(shown)

    def _go_on(self, outcome: str, shown: str) -> StepResult:
        left = self._options.max_steps - self._replies
        if not left:
            return self._end(grade(None, self._task.answer), None, outcome)
        observation = f"{shown}\n\nReplies left: {left}"
        return StepResult((_user(observation),), feedback=outcome, info=self._info(None))

    def _end(self, result: Grade, answer: str | None, outcome: str = "") -> StepResult:
        """The closing line: how it went, reward, what was read as the answer, which rule decided, what it took."""
        status = _status(result, answer)
        said = "nothing" if answer is None else answer
        line = (
            f"{status} | reward={result.reward:.2f} | extracted={said} | details={result.details} | "
            f"searches={self._searches} | replies={self._replies} of {self._options.max_steps}"
        )
        return StepResult(
            reward=result.reward,
            terminated=answer is not None,
            truncated=answer is None,
            feedback=f"{outcome} {line}".strip(),
            scores={"exact_match": float(result.is_exact), "f1": result.f1, **self._support()},
            info=self._info(answer),
        )

    def _support(self) -> dict[str, float]:
        """The share of the supporting paragraphs that some search has shown."""
        wanted = self._task.data["supporting"]
        return {"support": sum(t in self._shown for t in wanted) / len(wanted)} if wanted else {}

    def _info(self, answer: str | None) -> dict[str, object]:
        return {"answer": answer, "searches": self._searches, "replies": self._replies}


_SEARCH = re.compile(r"<search>(.*?)</search>", re.DOTALL | re.IGNORECASE)


def search_of(reply: str) -> str | None:
    """What the first ``<search>...</search>`` asks for, where that is a word at least; else None."""
    found = (match[1].strip() for match in _SEARCH.finditer(reply))
    return next((query for query in found if query), None)


def _status(result: Grade, answer: str | None) -> str:
    if answer is None:
        return "TIMEOUT"
    if result.reward == 1.0:  # all the words in another order count as much
        return "CORRECT"
    return "PARTLY CORRECT" if result.reward else "INCORRECT"


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


# ------------------------------------------------------------------------- the prompts, in our own words

FORM = (
    "To search, write <search>what to look for</search>. "
    "To answer, write \\boxed{the answer}, as short as it can be."
)
"""The form of a reply. It ends the system prompt, so that an ERL recipe can name it as its reminder."""

SYSTEM = """\
You answer questions with the help of a search over a collection of paragraphs. Think before each reply, then \
either search or answer. Each search shows you the paragraphs that match best. You have {replies}, the answer \
included.

{form}"""

UNREADABLE = "The reply held neither a search nor a boxed answer."
NOTHING = "No paragraph matches that search."
