"""The model behind the interface: predictions and attacks, each with a dial of its own."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from splitmix.core.errors import UserError, shown
from splitmix.core.inputs.pictures import Pixels
from splitmix.core.width import Width, parse_width
from splitmix.runtime.anytime import probabilities
from splitmix.runtime.images import to_net, to_png
from splitmix.runtime.model import Model
from splitmix.runtime.plan import Limits, plan
from splitmix.runtime.probe import Measured, probe
from splitmix.serve.limits import STOPPING, ServerLimits
from splitmix.serve.metrics import Metrics
from splitmix.serve.questions import Attacked, PictureAnswer, PictureQuestion, PlanAnswer, PlanQuestion, Verdict, Vote
from splitmix.serve.turns import BusyError, Crew

if TYPE_CHECKING:
    from torch import Tensor

    from splitmix.core.objective import Attack


class Service:
    """Answers questions about pictures; it keeps none of them."""

    def __init__(self, model: Model, attack: "Attack | None", limits: ServerLimits) -> None:
        self.model, self.attack, self.metrics = model, attack, Metrics()
        self._crew, self._closing, self._most_attacks = Crew(limits), False, limits.attacks
        self._probing = asyncio.Lock()
        self._measured: tuple[Measured, ...] | None = None

    async def warm_up(self) -> None:
        """Use every width once, so that no visitor waits for what happens only the first time."""
        blank = np.zeros(self.model.image, np.uint8)
        for width in self.model.widths:
            await self._crew.run(partial(self._verdicts, width, 0.0, [blank]))

    def close(self) -> None:
        """Finish what runs; attacks are given up."""
        self._closing = True
        self._crew.close()

    async def plan(self, asked: PlanQuestion) -> PlanAnswer:
        """The best dial within limits; this machine is measured once, by whoever asks first."""
        async with self._probing:
            if self._measured is None:
                self._measured = await self._crew.run(partial(probe, self.model))
        limits = Limits(**asked.model_dump(exclude={"prefer"}))
        found = plan(self.model, limits, prefer=asked.prefer, measured=self._measured)
        return PlanAnswer(fits=found.fits, option=found.option, binding=list(found.binding), relax=found.relax)

    async def answer(
        self, ask: PictureQuestion, picture: NDArray[Any] | Callable[[], Pixels], *, asked: float, who: str = ""
    ) -> PictureAnswer:
        """The class of a sample at the dial that is asked for, and what it costs; `asked` is when, by the clock.

        Plain questions that wait with the same dial are answered in one go. A picture that is yet to be decoded is so
        in a thread; like attacks, that leaves one to plain questions.
        """
        width = self.model.widths[-1] if ask.width is None else parse_width(ask.width)
        robust, hit, target = ask.robust or 0.0, None, None if ask.label is None else self._class(ask.label)
        self.metrics.waiting.set(self._crew.under_way)
        pixels = picture if isinstance(picture, np.ndarray) else await self._crew.run(picture, who=who, costly=True)
        if ask.deadline_ms is None and ask.confidence is None:
            verdicts = partial(self._verdicts, width, robust)
            verdict = await self._crew.run_together(verdicts, pixels, key=(width, robust), who=who)
        else:
            verdict, width = await self._crew.run(partial(self._hurried, ask, pixels, width, robust, asked), who=who)
        if ask.attack:
            attacked = partial(self._attacked, pixels, width, robust, target, verdict)
            hit = await self._crew.run(attacked, who=who, costly=True, most=self._most_attacks)
        return self._costed(verdict, width, robust, hit)

    def _costed(self, verdict: Verdict, width: Width, robust: float, hit: Attacked | None) -> PictureAnswer:
        cost = self.model.manifest.cost(width)
        self.metrics.seconds.labels(width=str(width)).observe(verdict.milliseconds / 1e3)
        return PictureAnswer(
            **dict(verdict),
            width=str(width),
            robust=robust,
            bases=cost.bases,
            parameters=cost.parameters,
            macs=cost.macs,
            attacked=hit,
        )

    def _verdicts(self, width: Width, robust: float, pictures: Sequence[NDArray[Any]]) -> list[Verdict]:
        """What the mix says of each picture, and what each base says; all in one batch."""
        began = perf_counter()
        logits = np.asarray(self.model.logits_by_base(np.stack(pictures), width, robust))  # (base, n, class)
        shares = probabilities(self.model.mean(logits))
        milliseconds = 1e3 * (perf_counter() - began)
        chances, classes = probabilities(logits).max(-1), logits.argmax(-1)  # (base, n)
        votes = [
            [Vote(label=self.model.classes[place], probability=chance) for place, chance in zip(*each, strict=True)]
            for each in zip(classes.T.tolist(), chances.T.tolist(), strict=True)
        ]
        return [self._said(*each, milliseconds) for each in zip(shares, votes, strict=True)]

    def _hurried(
        self, ask: PictureQuestion, pixels: NDArray[Any], width: Width, robust: float, asked: float
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

    def _attacked(
        self, pixels: NDArray[Any], width: Width, robust: float, target: int | None, verdict: Verdict
    ) -> Attacked:
        """The same dial on the picture that an attack makes of this one, in whole pixels as anyone could send it."""
        if self.attack is None:
            raise UserError("this server offers no attack; leave it out")
        import torch

        away = self.model.classes.index(verdict.label) if target is None else target
        mix, began = self.model.mix(width), perf_counter()

        def predict(x: "Tensor") -> "Tensor":
            if self._closing:
                raise BusyError(503, STOPPING)
            return self.model.mean(mix(x, robust))

        rng = torch.Generator().manual_seed(0)  # the same question has the same answer
        made = self.attack(predict, torch.from_numpy(to_net(pixels[None])), torch.tensor([away]), rng)
        spent = perf_counter() - began
        self.metrics.attacks.observe(spent)
        changed = (made[0] * 255).round().clamp(0, 255).permute(1, 2, 0).contiguous().numpy().astype(np.uint8)
        (found,) = self._verdicts(width, robust, [changed])
        return Attacked(
            **dict(found),
            picture=to_png(changed),
            target=self.model.classes[away],
            fooled=verdict.label == self.model.classes[away] != found.label,  # a wrong answer cannot be led astray
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
