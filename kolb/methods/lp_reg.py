"""Lp-Reg's own setting: GRPO with a nearly unclipped surrogate and the Lp-Reg term. Huang et al., arXiv:2510.03222.

Followed: section 3 (the term is ``kolb.terms.lp_reg``) and section 5.1 (G = 8, bounds 0 and 10 of the ratio, means over
tokens, no KL to a reference). Groups whose rewards are all equal stay in. The term alone goes into any method:
``terms=(*METHOD.terms, LpReg())``, or ``[[stages.terms]]`` with ``use = "lp_reg"``.

``METHOD`` and ``OFFICIAL`` have the released code's surrogate, the larger of the two losses, which bounds a ratio
above 10 only where A > 0; ``PAPER`` has the one that is printed, ``clip(r, 0, 10) A``, which bounds both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from kolb.methods.grpo import Grpo
from kolb.terms import lp_reg
from kolb.terms.lp_reg import LpReg
from kolb.types import Calls, Group, Task, Update, World


@dataclass(frozen=True)
class LpRegGrpo:
    """GRPO's settings in ``grpo``, the term's in ``lp_reg``."""

    grpo: Grpo = Grpo(clip_low=1.0, clip_high=9.0, importance_cap=None)
    lp_reg: LpReg = LpReg()

    name: ClassVar[str] = "lp_reg"
    roles: ClassVar[tuple[str, ...]] = Grpo.roles
    needs: ClassVar[frozenset[str]] = Grpo.needs

    @property
    def terms(self) -> tuple[Any, ...]:
        surrogate = self.grpo.terms[0]
        given = {"normalisation": surrogate.normalisation, "constant": surrogate.constant}
        term = self.lp_reg if self.lp_reg.normalisation else replace(self.lp_reg, **given)
        return (*self.grpo.terms, term)

    def calls(self, tasks: int, step: int) -> dict[str, Calls]:
        return self.grpo.calls(tasks, step)

    async def collect(self, tasks: Sequence[Task], world: World) -> list[Group]:
        return await self.grpo.collect(tasks, world)

    def credit(self, groups: Sequence[Group], state: Any) -> Update:
        return self.grpo.credit(groups, state)


METHOD = LpRegGrpo()
OFFICIAL = replace(METHOD, lp_reg=lp_reg.OFFICIAL)
PAPER = LpRegGrpo(replace(METHOD.grpo, dual_clip=10.0), lp_reg.PAPER)
