"""The model behind the interface: predictions and attacks, each with a dial of its own."""

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from splitmix.core.errors import UserError, shown
from splitmix.core.objective import Attack
from splitmix.core.width import Width, parse_width
from splitmix.runtime.images import Pixels, to_net, to_png
from splitmix.runtime.model import Model
from splitmix.runtime.plan import Limits, plan
from splitmix.runtime.probe import Measured, probe
from splitmix.serve.limits import ServerLimits
from splitmix.serve.metrics import Metrics
from splitmix.serve.questions import Attacked, PictureAnswer, PictureQuestion, PlanAnswer, PlanQuestion, Verdict, Vote
from splitmix.serve.turns import BusyError, Crew

Done = TypeVar("Done")


class Service:
    """Answers questions about pictures; it keeps none of them."""

    def __init__(self, model: Model, attack: Attack | None, limits: ServerLimits) -> None:
        self.model, self.attack, self.metrics = model, attack, Metrics()
        self._crew, self._closing = Crew(limits), False
        self._probing = asyncio.Lock()
        self._measured: tuple[Measured, ...] | None = None

    async def run(self, work: Callable[[], Done], *, who: str = "", costly: bool = False) -> Done:
        """Run work in one of the threads, or refuse it if too much is waiting."""
        try:
            return await self._crew.run(work, who=who, costly=costly)
        finally:
            self.metrics.waiting.set(self._crew.under_way)

    async def warm_up(self) -> None:
        """Use every width once, so that no visitor waits for what happens only the first time."""
        blank = np.zeros(self.model.image, np.uint8)
        for width in self.model.widths:
            await self.run(partial(self._verdict, blank, width, 0.0))

    def close(self) -> None:
        """Finish what runs; attacks are given up."""
        self._closing = True
        self._crew.close()

    async def plan(self, asked: PlanQuestion) -> PlanAnswer:
        """The best dial within limits; this machine is measured once, by whoever asks first."""
        async with self._probing:
            if self._measured is None:
                self._measured = await self.run(partial(probe, self.model))
        limits = Limits(**asked.model_dump(exclude={"prefer"}))
        found = plan(self.model, limits, prefer=asked.prefer, measured=self._measured)
        return PlanAnswer(fits=found.fits, option=found.option, binding=list(found.binding), relax=found.relax)

    def answer(self, ask: PictureQuestion, pixels: Pixels, asked: float) -> PictureAnswer:
        """The class of a picture at the dial that is asked for, and what it costs; `asked` is when, by the clock."""
        target = None if ask.label is None else self._class(ask.label)
        width = self.model.widths[-1] if ask.width is None else parse_width(ask.width)
        robust = 0.0 if ask.robust is None else ask.robust
        if ask.deadline_ms is None and ask.confidence is None:
            verdict = self._verdict(pixels, width, robust)
        else:
            verdict, width = self._hurried(ask, pixels, width, robust, asked)
        cost = self.model.manifest.cost(width)
        self.metrics.seconds.labels(width=str(width)).observe(verdict.milliseconds / 1e3)
        return PictureAnswer(
            **dict(verdict),
            width=str(width),
            robust=robust,
            bases=cost.bases,
            parameters=cost.parameters,
            macs=cost.macs,
            attacked=self._attacked(pixels, width, robust, target, verdict) if ask.attack else None,
        )

    def _verdict(self, pixels: Pixels, width: Width, robust: float) -> Verdict:
        began = perf_counter()
        logits = self.model.logits_by_base(pixels[None], width, robust)  # (base, 1, class)
        shares = logits.mean(0).softmax(-1)[0]
        spent = perf_counter() - began
        votes = [
            Vote(label=self.model.classes[int(base.argmax())], probability=float(base.max()))
            for base in logits[:, 0].softmax(-1)
        ]
        return self._said(shares.numpy(), votes, 1e3 * spent)

    def _hurried(
        self, ask: PictureQuestion, pixels: Pixels, width: Width, robust: float, asked: float
    ) -> tuple[Verdict, Width]:
        """As many bases as the deadline or the confidence wants; says which width they make up."""
        left = None
        if ask.deadline_ms is not None:  # waiting for a thread takes time as well
            left = max(1e-3, ask.deadline_ms - 1e3 * (perf_counter() - asked))
        found = self.model.predict(
            pixels[None], width=width, robust=robust, deadline_ms=left, confidence=ask.confidence
        )
        return self._said(found.probabilities[0], [], found.milliseconds), self.model.atom * int(found.bases[0])

    def _said(self, shares: Any, votes: list[Vote], milliseconds: float) -> Verdict:
        return Verdict(
            label=self.model.classes[int(shares.argmax())],
            probabilities=[float(share) for share in shares],
            votes=votes,
            milliseconds=milliseconds,
        )

    def _attacked(self, pixels: Pixels, width: Width, robust: float, target: int | None, verdict: Verdict) -> Attacked:
        """The same dial on the picture that an attack makes of this one, in whole pixels as anyone could send it."""
        if self.attack is None:
            raise UserError("this server offers no attack; leave it out")
        away = self.model.classes.index(verdict.label) if target is None else target
        mix, began = self.model.mix(width), perf_counter()

        def predict(x: Tensor) -> Tensor:
            if self._closing:
                raise BusyError(503, "the server is being stopped; try again in a moment")
            return mix(x, robust).mean(0)

        rng = torch.Generator().manual_seed(0)  # the same question has the same answer
        made = self.attack(predict, to_net(pixels[None]), torch.tensor([away]), rng)
        spent = perf_counter() - began
        self.metrics.attacks.observe(spent)
        changed = (made[0] * 255).round().clamp(0, 255).permute(1, 2, 0).contiguous().numpy().astype(np.uint8)
        found = self._verdict(changed, width, robust)
        return Attacked(
            **dict(found),
            picture=to_png(changed),
            target=self.model.classes[away],
            fooled=found.label != self.model.classes[away],
            attack=self.attack.name,
            attack_milliseconds=1e3 * spent,
        )

    def _class(self, label: str | int) -> int:
        """The number of a class, given by name or number."""
        names = self.model.classes
        if str(label) in names:
            return names.index(str(label))
        if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(names):
            return label
        few = ", ".join(names[:12]) + (" ..." if len(names) > 12 else "")
        raise UserError(f"label {shown(label)} is no class of this model; its classes are {few}")
