"""What Training-Free GRPO asks the model ``notes``: a few words for each call, which the model was taught with.

``recipes/tf_grpo/frozenlake_notes.toml`` gives the same prompts; a test holds the two together.
"""

from __future__ import annotations

from dataclasses import replace

from kolb.methods.tf_grpo import METHOD, TfGrpo
from kolb.methods.tf_grpo_prompts import PROMPTS

NOTES = replace(
    PROMPTS,
    agent="",
    wanted="",
    heading="known :",
    summary="what happened in this attempt ?",
    comparison="compare attempts : which symbol is what ?",
    tips="compare attempts : which symbol is what ?",
    proposals="add , update or keep ?",
    plan="one plan from all proposals ?",
)

TOLD: TfGrpo = replace(METHOD, prompts=NOTES, lessons_per_group=4)
UNTOLD: TfGrpo = replace(TOLD, judged_by="nobody")
TIPS: TfGrpo = replace(TOLD, group_size=0)
"""The method as the corpus uses it: with results, without them, and without attempts."""
