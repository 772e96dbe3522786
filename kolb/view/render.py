"""Episodes as things that rich can print. Text of models and environments is shown, never interpreted.

Everything is built from ``rich.text.Text``, which knows no markup; control characters (terminal escapes,
bells, text direction marks) become visible symbols before they get there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from kolb.types import Episode, Group, Message, Status, Trajectory, Turn

ROLE_STYLES = {"system": "magenta", "user": "blue", "tool": "cyan"}
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
PROBABILITY_STYLES = ((0.9, "green"), (0.5, "cyan"), (0.1, "yellow"), (0.0, "red"))
EXCERPT = 60

Spelling = Callable[[str, int], str | None]
"""The text of a policy's token; None where it is not known."""


def safe(text: object, style: str = "") -> Text:
    """``text`` literally: brackets stay brackets, and an escape character shows as ``␛``."""
    return Text(UNSAFE.sub(_symbol, str(text)), style=style)


def _symbol(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"\\u{code:04x}"


def excerpt(text: str, width: int = EXCERPT) -> Text:
    """One line of ``text``: white space folded, the middle left out."""
    line = " ".join(text.split())
    if len(line) > width:
        line = f"{line[: width * 2 // 3]} … {line[-width // 3 :]}"
    return safe(line)


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def status_text(status: Status) -> Text:
    style = {Status.OK: "green", Status.TRUNCATED: "yellow"}.get(status, "bold red")
    return Text(status.value, style=style)


# ------------------------------------------------------------------------------------------ groups


def group_view(group: Group) -> RenderableType:
    """The task, and a line for each episode."""
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    for name in ("episode", "status", "outcome", "turns", "tokens"):
        table.add_column(name, no_wrap=True)
    table.add_column("rewards", ratio=2, no_wrap=True)
    table.add_column("last words", ratio=3, no_wrap=True)
    for position, episode in enumerate(group.episodes):
        table.add_row(str(position), *_episode_cells(episode))
    asked = " ".join(message_text(m) for m in group.task.prompt if m.get("role") != "system")
    head = Text.assemble("task ", safe(group.task.id, "bold"), "  kind ", safe(group.kind))
    question = [excerpt(asked, 200)] if asked.strip() else []
    return Stack(head, *question, Text(""), table)


def _episode_cells(episode: Episode) -> Iterator[RenderableType]:
    first = episode.trajectories[0].turns if episode.trajectories else ()
    rated = [t for t in episode.trajectories if t.reward is not None]
    yield status_text(episode.status)
    yield number(episode.outcome)
    yield str(sum(len(t.turns) for t in episode.trajectories))
    yield str(sum(t.sampled_tokens for t in episode.trajectories))
    yield safe(", ".join(f"{t.name or t.role} {number(t.reward)}" for t in rated))
    if episode.failure is not None:
        yield excerpt(episode.failure.message)
    else:
        yield excerpt(first[-1].completion.text) if first else Text("")


# ---------------------------------------------------------------------------------------- episodes


def episode_view(
    episode: Episode,
    *,
    tokens: bool = False,
    max_chars: int = 0,
    last_turns: int = 0,
    spelling: Spelling | None = None,
) -> RenderableType:
    """Every trajectory, every turn. ``max_chars`` shortens long texts in the middle (0: never);
    ``last_turns`` leaves out all but so many turns of each trajectory (0: none are left out).

    ``spelling`` gives the text of a policy's token where it is known; else its id is shown.
    """
    spell = spelling or (lambda _policy, _token: None)
    head = Text.assemble("status ", status_text(episode.status))
    head.append(f"   outcome {number(episode.outcome)}")
    parts: list[RenderableType] = [head]
    if episode.info:
        parts.append(_fields([("info", safe(compact_json(episode.info), "dim"))]))
    if tokens:
        parts.append(_legend())
    for trajectory in episode.trajectories:
        parts += [Text(""), Rule(_title(trajectory), align="left", style="dim")]
        if set(trajectory.scores) - {"reward"}:
            parts.append(_scores(trajectory))
        left_out = max(len(trajectory.turns) - last_turns, 0) if last_turns else 0
        if left_out:
            parts.append(Text(f"… earlier turns: {left_out}", style="dim"))
        for position, turn in list(enumerate(trajectory.turns))[left_out:]:
            parts.append(Text(_turn_facts(turn, position, len(trajectory.turns)), style="dim"))
            parts.append(_fields(_turn_rows(turn, max_chars)))
            if tokens:
                words = partial(_word, spell, trajectory.policy)
                parts.append(_fields(_token_rows(turn, trajectory.learns, words)))
    if episode.failure is not None:
        parts += [Text(""), Rule(Text("failure", style="bold red"), align="left", style="red")]
        rows = [("boundary", episode.failure.boundary), ("message", episode.failure.message)]
        rows.append(("traceback", episode.failure.traceback.rstrip()))
        parts.append(_fields([(name, safe(text)) for name, text in rows if text]))
    return Stack(*parts)


def _title(trajectory: Trajectory) -> Text:
    title = Text.assemble(safe(trajectory.role, "bold"))
    if trajectory.name:
        title.append_text(safe(f" ({trajectory.name})"))
    if trajectory.policy:
        title.append_text(safe(f" · policy {trajectory.policy}", "dim"))
    title.append(" · learns" if trajectory.learns else " · does not learn", style="dim")
    title.append(f" · reward {number(trajectory.reward)}", style="bold")
    return title


def _scores(trajectory: Trajectory) -> Text:
    parts = []
    for name, value in trajectory.scores.items():
        weight = trajectory.weights.get(name)
        counts = "logged only" if weight is None else f"weight {weight:g}"
        parts.append(f"{name} {number(value)} ({counts})")
    return safe("scores: " + ", ".join(parts), "dim")


def _turn_facts(turn: Turn, position: int, turns: int) -> str:
    said = turn.completion
    count = f"{said.tokens} tokens" if said.tokens else "text without tokens"
    source = "given" if said.stop_reason == "given" else f"sampled by version {said.version}"
    facts = [f"turn {position + 1} of {turns}", f"{count}, {source}"]
    if said.stop_reason not in ("given", "stop"):
        facts.append(f"stopped by {said.stop_reason}")
    if turn.starts_segment and position:  # the first turn always does
        facts.append("starts a new segment")
    return " · ".join(facts)


def _turn_rows(turn: Turn, max_chars: int) -> Iterator[tuple[str, Text]]:
    for message in turn.messages:
        role = str(message.get("role", "?"))
        text = shortened(message_text(message), max_chars)
        yield role, safe(text, "dim" if role == "system" else "")
    if turn.completion.reasoning:
        yield "thinks", safe(shortened(turn.completion.reasoning, max_chars), "dim")
    yield "says", safe(shortened(turn.completion.text, max_chars), "green")
    if turn.feedback:
        yield "feedback", safe(shortened(turn.feedback, max_chars), "yellow")


def _fields(rows: Any) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=10, no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(safe(name, ROLE_STYLES.get(name, "dim")), text)
    return Padding(table, (0, 0, 0, 2))


def message_text(message: Message) -> str:
    """The content of an OpenAI message as text: parts joined, tool calls written out."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) else [_part_text(p) for p in content or ()]
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        parts.append(f"calls {function.get('name')}({function.get('arguments', '')})")
    return "\n".join(parts)


def _part_text(part: Any) -> str:
    if isinstance(part, Mapping):
        return str(part.get("text", f"<{part.get('type', 'part')}>"))
    return str(part)


def shortened(text: str, max_chars: int) -> str:
    """``text`` with its middle left out where it is longer than ``max_chars`` (0: any length)."""
    if max_chars <= 0 or len(text) <= max_chars:
        return text
    left = len(text) - max_chars
    half = max_chars // 2
    return f"{text[:half]}\n… {left:,} characters left out …\n{text[len(text) - half :]}"


def compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


# ------------------------------------------------------------------------------------------ tokens


def _legend() -> Text:
    legend = Text(
        "tokens: text, or id where it is unknown, / probability in percent; ", style="dim"
    )
    for least, style in PROBABILITY_STYLES:
        legend.append(f"{style} from {100 * least:.0f}", style=style).append(", ", style="dim")
    return legend.append("underlined", style="underline").append(": learnt", style="dim")


def _word(spell: Spelling, policy: str, token: int) -> str:
    """The token as one word: its text with white space made visible, or its id."""
    text = spell(policy, token)
    if not text:
        return str(token)
    return text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")


def _token_rows(turn: Turn, learns: bool, word: Callable[[int], str]) -> Iterator[tuple[str, Text]]:
    context = safe(" ".join(map(word, turn.context_ids.tolist())), "dim")
    if context:
        yield f"{len(turn.context_ids)} seen", context
    said = turn.completion
    shown = Text()
    for position, token in enumerate(said.token_ids.tolist()):
        has_logprob = position < len(said.logprobs)
        shown.append_text(
            _token(word(token), float(said.logprobs[position]) if has_logprob else None, learns)
        )
        shown.append(" ")
    if shown:
        yield f"{len(said.token_ids)} said", shown


def _token(word: str, logprob: float | None, learns: bool) -> Text:
    underline = " underline" if learns else ""
    if logprob is None:
        return safe(word, underline.strip())
    probability = math.exp(min(logprob, 0.0)) if not math.isnan(logprob) else 0.0
    style = next((s for least, s in PROBABILITY_STYLES if probability >= least), "red")
    return safe(f"{word}/{100 * probability:.0f}", style + underline)
