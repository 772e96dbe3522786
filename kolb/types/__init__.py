"""The vocabulary of kolb: frozen dataclasses and the protocols between its layers.

One word, one meaning (docs/vocabulary.md). Nothing here does I/O and nothing here needs torch:
token ids are int32 and per-token numbers are float32 numpy arrays, ragged, never padded.

    Task --Environment--> Turns --> Trajectory --> Episode --> Group --credit--> Update --> Examples
"""

from kolb.types.arrays import NO_FLOATS, NO_IDS, Floats, Ids, derive_seed
from kolb.types.learning import Edit, Example, Experience, MinP, Update
from kolb.types.methods import Calls, EpisodeMaker, Library, Method, World
from kolb.types.samples import (
    Completion,
    Episode,
    Failure,
    Group,
    SamplingParams,
    Status,
    Trajectory,
    Turn,
)
from kolb.types.worlds import Environment, Message, StepResult, Task

__all__ = [
    "NO_FLOATS",
    "NO_IDS",
    "Calls",
    "Completion",
    "Edit",
    "Environment",
    "Episode",
    "EpisodeMaker",
    "Example",
    "Experience",
    "Failure",
    "Floats",
    "Group",
    "Ids",
    "Library",
    "Message",
    "Method",
    "MinP",
    "SamplingParams",
    "Status",
    "StepResult",
    "Task",
    "Trajectory",
    "Turn",
    "Update",
    "World",
    "derive_seed",
]
