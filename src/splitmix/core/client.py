"""What happens on a client: local training, scoring and calibration, the same for all methods and engines."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from splitmix.core.batches import UNTIMED, ClientData, Clock, Optimizer, Split, augmented, even_batches, shuffled
from splitmix.core.errors import UserError
from splitmix.core.net import Net, from_moments, to_moments
from splitmix.core.objective import Objective, Predict, withstood
from splitmix.core.parts import covering, window, windows
from splitmix.core.reproducible import drawing_for, torch_rng_for
from splitmix.core.types import (
    Calibrate,
    Job,
    Part,
    Question,
    Score,
    Tally,
    Train,
    Update,
    Weights,
    at_width,
    group_by_width,
)
from splitmix.core.width import Width

RightAnswers = Callable[[Tensor, Tensor, int], list[Tensor]]  # images, labels, place of the first -> right, by mix
ATTACKED = 256  # training images of a client, at most, on which it calibrates noisy norms: an attack takes its time
OwnNorms = dict[int, Weights]  # what a client keeps to itself between rounds: its norms of each base it trained
MeasuredNorms = dict[str, Weights]  # norm statistics that a client found under one model, by what was asked of it


def execute(
    job: Job,
    net: Net,
    download: Weights,
    data: ClientData,
    objective: Objective,
    own: OwnNorms,
    clock: Clock = UNTIMED,
    measured: MeasuredNorms | None = None,
) -> Update | Tally:
    """Do a job on the client that it names; `download` holds the covering parts of the job, stacked.

    Norm statistics that were `measured` under the very model at hand are not measured again; others join them.
    """
    if isinstance(job, Train):
        return train_client(job, net, download, data, objective, own, clock)
    if isinstance(job, Score):
        return score_client(job, net, download, data, own, measured)
    return calibrate_client(job, net, download, data, measured)


def parts_of(job: Job) -> tuple[Part, ...]:
    """The parts that travel for a job: the download."""
    return covering(all_parts(job))


def all_parts(job: Job) -> tuple[Part, ...]:
    """Every part that a job looks at; of a score those of the surrogate too."""
    if not isinstance(job, Score):
        return job.parts
    surrogate = () if job.question.surrogate is None else job.question.surrogate[0]
    return tuple(part for mix in (*job.mixes, surrogate) for part in mix)


def train_client(
    job: Train,
    net: Net,
    download: Weights,
    data: ClientData,
    objective: Objective,
    own: OwnNorms,
    clock: Clock = UNTIMED,
) -> Update:
    """Train all parts on the same batches with one optimizer, made anew in every round (Algorithm 3)."""
    parts, plan = covering(job.parts), job.plan
    width = parts[0].width
    private = net.norm_names(width) if job.local_norms else set()
    names = net.parameter_names(width)
    start = with_own_norms(download, parts, private, own)
    leaves = {name: value.clone().requires_grad_(name in names) for name, value in start.items()}
    forward = Parts(net, job.parts, leaves)
    trainable = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    optimizer = Optimizer(trainable, net.norm_names(width), plan)
    rng = torch_rng_for(job.seed, "client", job.round, job.client)
    losses = []
    clock.lap("other")
    with drawing_for(data.train.labels.device, job.seed, "net", job.round, job.client):
        for picks in shuffled(len(data.train), plan.batch, plan.epochs, rng):
            x, y = data.train.batch(picks)
            x = augmented(x, data.augment, rng)
            clock.lap("data")
            with plan.computing_on(x.device):
                loss = objective(forward, x, y, rng)
            clock.lap("forward")
            optimizer.step(loss, clock)
            losses.append(loss.detach())
    trained = {name: value.detach() for name, value in leaves.items()}
    upload = keep_norms(trained, parts, private, own)
    mean = float(torch.stack(losses).mean()) / objective.terms(len(job.parts))
    return Update(job.round, job.client, job.parts, upload, len(data.train), {"loss": mean}, run=job.run)


@dataclass(frozen=True)
class Parts:
    """The job's parts as one function of a batch; nested parts are slices of the same leaf tensors."""

    net: Net
    parts: tuple[Part, ...]
    leaves: Weights

    @property
    def widths(self) -> tuple[Width, ...]:
        return tuple(width for width, _ in group_by_width(self.parts))

    def __call__(
        self, x: Tensor, robust: float = 0.0, *, training: bool = True, only: Sequence[int] | None = None
    ) -> Sequence[Tensor]:
        return [self.net.run(width, own, x, robust, training=training) for width, own in self._entries(only)]

    def fixed(self, place: int, robust: float = 0.0) -> Predict:
        ((width, own),) = self._entries([place])
        return self.net.fixed(width, own, robust)

    def _entries(self, only: Sequence[int] | None) -> list[tuple[Width, Weights]]:
        """The entries of the parts of each width, or of the widths at some places."""
        whole = covering(self.parts)
        row = {part.base: i for i, part in enumerate(whole)}
        groups = list(group_by_width(self.parts).values())
        chosen = groups if only is None else [groups[i] for i in only]
        nested = windows(self.net, whole[0].width, self.leaves, [replace(group[0], shift=0) for group in chosen])
        found = []
        for group, entries in zip(chosen, nested, strict=True):
            bases = [row[part.base] for part in group]
            if bases != list(range(len(whole))):
                entries = {name: value[bases] for name, value in entries.items()}
            found.append((group[0].width, entries))
        return found


def score_client(
    job: Score, net: Net, download: Weights, data: ClientData, own: OwnNorms, measured: MeasuredNorms | None = None
) -> Tally:
    """Right answers of every mix, on the images as they are or on what an attack makes of them."""
    asked, parts = job.question, parts_of(job)
    width, split = parts[0].width, halved(data.split(asked.split), asked.half)
    split = drawn(split, asked.images, asked.seed, job.client)
    weights = with_own_norms(download, parts, net.norm_names(width) if asked.local_norms else set(), own)
    if asked.norm == "client":
        how = Calibrate(job.client, all_parts(job), asked.batch, touched(asked), asked.noise)
        weights = {**weights, **nested_statistics(how, net, weights, data.train, measured)}
    elif asked.local_norms:
        weights = with_untrained_bases(job, net, weights, data.train, own)
    if len(split) == 1 and not net.has_statistics(width, weights):
        return Tally(job.client, (0,) * len(job.mixes), 0)  # one image has no batch to be normalised in
    right = clean_answers(job, net, weights) if asked.attack is None else attacked_answers(job, net, weights)
    correct = torch.zeros(len(job.mixes), dtype=torch.int64)
    for picks in even_batches(len(split), asked.batch):
        correct += torch.stack(right(*split.batch(picks), int(picks[0]))).sum(1).cpu()
    return Tally(job.client, tuple(correct.tolist()), len(split))


def halved(split: Split, half: int) -> Split:
    """All images, or one half of them."""
    return replace(split, rows=split.rows[half - 1 :: 2]) if half else split


def drawn(split: Split, images: int | None, seed: int, client: int) -> Split:
    """The images that are asked about: all, or some drawn by the seed, the same under every attack and dial."""
    if images is None or images >= len(split):
        return split
    order = torch.randperm(len(split), generator=torch_rng_for(seed, "images", client))
    return replace(split, rows=split.rows[order[:images].sort().values])


def touched(asked: Question) -> tuple[float, ...]:
    """The ends of the dial whose norms a question looks at."""
    dials = (asked.robust, *(() if asked.surrogate is None else asked.surrogate[1:]))
    return tuple(end for end in (0.0, 1.0) if any(abs(end - dial) < 1 for dial in dials))


def clean_answers(job: Score, net: Net, weights: Weights) -> RightAnswers:
    """Which answers are right, from one forward pass of each part."""

    def right(x: Tensor, y: Tensor, place: int) -> list[Tensor]:
        with torch.inference_mode():
            logits = part_logits(net, weights, job.mixes, x, job.question.robust)
            return [mean_logits(logits, mix).argmax(-1) == y for mix in job.mixes]

    return right


def attacked_answers(job: Score, net: Net, weights: Weights) -> RightAnswers:
    """Which answers are right and withstand the attack; each mix is attacked by itself, from the same draws."""
    asked, parts = job.question, parts_of(job)
    if net.statistic_names(parts[0].width) - weights.keys():
        raise UserError("an attack needs fixed norm statistics, not those of the batch; calibrate the model first")
    served = [mixed(net, parts, weights, mix, asked.robust) for mix in job.mixes]
    known = None if asked.surrogate is None else mixed(net, parts, weights, *asked.surrogate)

    def right(x: Tensor, y: Tensor, place: int) -> list[Tensor]:
        assert asked.attack is not None
        address = (asked.seed, "attack", job.client, place)
        return [withstood(asked.attack, mix, x, y, torch_rng_for(*address), surrogate=known) for mix in served]

    return right


def mixed(net: Net, parts: Sequence[Part], weights: Weights, mix: Sequence[Part], robust: float) -> Predict:
    """A mix as a function of images; `weights` holds `parts`, and what the mix needs of them is cut out once."""
    once = list(dict.fromkeys(mix))
    rows = [[part.base for part in parts].index(part.base) for part in once]
    picked = {name: value[rows] for name, value in weights.items()}
    own = window(net, parts[0].width, picked, replace(mix[0], shift=0))
    votes = [once.index(part) for part in mix] if len(once) < len(mix) else slice(None)
    return lambda x: net.run(mix[0].width, own, x, robust)[votes].mean(0)


def part_logits(
    net: Net, weights: Weights, mixes: Sequence[tuple[Part, ...]], x: Tensor, robust: float = 0.0
) -> dict[Part, Tensor]:
    """Logits (batch, class) of every part of the mixes, each computed once; `weights` holds their covering parts."""
    wanted = tuple(dict.fromkeys(part for mix in mixes for part in mix))
    groups = group_by_width(wanted)
    logits = Parts(net, wanted, weights)(x, robust, training=False)
    return {
        part: row
        for group, rows in zip(groups.values(), logits, strict=True)
        for part, row in zip(group, rows, strict=True)
    }


def mean_logits(logits: dict[Part, Tensor], mix: Sequence[Part]) -> Tensor:
    """The mix: plain mean of the logits of its parts."""
    return torch.stack([logits[part] for part in mix]).mean(0)


def calibrate_client(
    job: Calibrate, net: Net, download: Weights, data: ClientData, measured: MeasuredNorms | None = None
) -> Update:
    """Moments of every norm's input on the client's own training images."""
    found = nested_statistics(job, net, download, data.train, measured)
    need_all(net.statistic_names(covering(job.parts)[0].width) - found.keys())
    return Update(0, job.client, job.parts, to_moments(found), len(data.train))


def nested_statistics(
    job: Calibrate, net: Net, weights: Weights, split: Split, measured: MeasuredNorms | None = None
) -> Weights:
    """Norm statistics of each width among the parts: a narrow net sees other sums than the wide one around it."""
    measured, parts = {} if measured is None else measured, covering(job.parts)
    ranks = torch.tensor([part.base for part in parts]).argsort()  # what is kept serves parts in any order
    widths = sorted({part.width for part in job.parts})
    asked = repr(([parts[rank] for rank in ranks], widths, job.batch, job.dials, job.noise))
    if asked not in measured:
        found = _nested_statistics(job, net, weights, split)
        measured[asked] = {name: value[ranks] for name, value in found.items()}
    return {name: value[ranks.argsort()] for name, value in measured[asked].items()}


def _nested_statistics(job: Calibrate, net: Net, weights: Weights, split: Split) -> Weights:
    full = covering(job.parts)[0].width
    found: Weights = {}
    for width in {part.width: None for part in job.parts}:
        measured = statistics(job, net, width, window(net, full, weights, Part(0, width)), split)
        found |= {name if width == full else at_width(width, name): value for name, value in measured.items()}
    return found


def statistics(job: Calibrate, net: Net, width: Width, weights: Weights, split: Split) -> Weights:
    """Norm statistics over a split, of every norm that the dials touch: those of the noisy ones on attacked images."""
    names, moments = net.statistic_names(width), Weights()
    for dial in job.dials:
        if names - moments.keys():  # a net without a dial is never asked for another
            images = noisy_images(job, net, width, weights, split) if dial and job.noise else clean_images(job, split)
            moments = mean_moments(net.measure(width, weights, x, dial) for x in images) | moments
    need_all(names - moments.keys() - weights.keys())
    return {name: value.float() for name, value in from_moments(moments).items()}


def need_all(unmeasured: Collection[str]) -> None:
    """Refuse a calibration that leaves some norms without statistics."""
    if unmeasured:
        raise UserError("noisy norms cannot be calibrated on clean images; train the net with norm 'tracked'")


def clean_images(job: Calibrate, split: Split) -> Iterator[Tensor]:
    """The images as they are, in batches."""
    for picks in even_batches(len(split), job.batch):
        yield split.batch(picks)[0]


def noisy_images(job: Calibrate, net: Net, width: Width, weights: Weights, split: Split) -> Iterator[Tensor]:
    """What the attack makes of some of the images, in batches, for each base its own, as in training."""
    assert job.noise is not None
    some, rng = drawn(split, ATTACKED, 0, job.client), torch_rng_for(0, "calibrate", job.client)
    predict = net.fixed(width, weights, 1.0)
    for picks in even_batches(len(some), job.batch):
        yield job.noise(predict, *some.batch(picks), rng)


def mean_moments(measured: Iterable[Weights]) -> Weights:
    """The mean of the moments of batches ("post average")."""
    batches = [to_moments(found) for found in measured]
    total = {name: value.double() for name, value in batches[0].items()}
    for batch in batches[1:]:
        total = {name: value + batch[name].double() for name, value in total.items()}
    return {name: value / len(batches) for name, value in total.items()}


def with_own_norms(download: Weights, parts: Sequence[Part], private: set[str], own: OwnNorms) -> Weights:
    """The download, with the client's own norms in place of the server's where it has any."""
    if not private:
        return download
    weights = dict(download)
    for name in private & download.keys():
        rows = [own[p.base][name] if p.base in own else download[name][i] for i, p in enumerate(parts)]
        weights[name] = torch.stack(rows)
    return weights


def with_untrained_bases(job: Score, net: Net, weights: Weights, split: Split, own: OwnNorms) -> Weights:
    """The weights, with norm statistics also for bases that the client never trained: those of its training images.

    Norms that stay on clients are nowhere but where they were trained: of a base that is strange to it, a client has
    only the statistics of a fresh net, which fit nothing. Noisy norms too are measured on the images as they are: near
    enough, and without an attack that a client may know nothing of.
    """
    parts = parts_of(job)
    strange = [i for i, part in enumerate(parts) if part.base not in own]
    if not strange or len(split) < 2:
        return weights
    rows = {name: value[strange] for name, value in weights.items()}
    how = Calibrate(job.client, parts, job.question.batch, dials=(0.0, 1.0))
    found = statistics(how, net, parts[0].width, rows, split)
    return weights | {name: weights[name].index_copy(0, torch.tensor(strange), v) for name, v in found.items()}


def keep_norms(trained: Weights, parts: Sequence[Part], private: set[str], own: OwnNorms) -> Weights:
    """Keep the client's own norms for its next round; all else is what it sends back."""
    for i, part in enumerate(parts if private else ()):
        own[part.base] = {name: trained[name][i].clone() for name in private & trained.keys()}
    return {name: value for name, value in trained.items() if name not in private}
