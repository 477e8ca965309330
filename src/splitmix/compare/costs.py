"""What a method costs: to serve a width, to a client in a round, over a whole run.

Nothing is trained: a run's rounds are replayed with the method's own `assign`, and shapes are all that is looked at.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from fractions import Fraction
from functools import cache, lru_cache, partial
from operator import add

from splitmix.core.errors import UserError
from splitmix.core.method import Method
from splitmix.core.net import Build, Net
from splitmix.core.objective import Objective
from splitmix.core.parts import covering
from splitmix.core.rounds import Federation, draw_cohort
from splitmix.core.types import Part, Profile, Setting, group_by_width
from splitmix.core.width import Width
from splitmix.data.budgets import parse_budgets
from splitmix.methods import find_method
from splitmix.nets.cost import FLOAT, Cost, Image, cost, cost_rows, training_bytes, training_macs, weightless
from splitmix.objectives.losses import DrawnWidth, Plain
from splitmix.report.tables import Column, Table, human
from splitmix.runs.config import parse_override
from splitmix.runs.setup import Setup

Profiles = Callable[[int], Sequence[Profile]]  # every registered client as it is in a round


@dataclass(frozen=True)
class Account:
    """Whose cost is counted: a method on a net, and how its clients train."""

    method: Method
    build: Build
    image: Image
    objective: Objective = field(default_factory=Plain)
    batch: int = 32
    epochs: int = 1
    norm: str = "post"  # tracked statistics travel too; local norms are not sent back

    @property
    def net(self) -> Net:
        return _weightless_net(self.build)

    def cost_at(self, *widths: Width) -> Cost:
        """Cost of nets of these widths together; each is counted once for all accounts."""
        return sum((_counted(self.build, width, self.image) for width in widths), Cost(0, 0, 0))

    def tracked_at(self, width: Width) -> int:
        """Numbers that travel beside a net for a width that is nested in it: the statistics that it tracks."""
        names = self.net.statistic_names(width) if self.norm == "tracked" else ()
        return sum(self.net.shapes(width)[name].numel() for name in names)


@dataclass(frozen=True)
class ClientCost:
    """What one round asks of a client. Where widths are drawn for each batch, work is a mean and memory a maximum."""

    trains: str = "nothing"
    forward: int = 0  # MACs of one training image, forward only, through all nets that it trains
    macs: int = 0  # of one training batch
    memory: int = 0  # bytes while training; see `training_bytes` for what is in it
    down: int = 0  # numbers to the client: each part once, of nested ones only the widest
    up: int = 0


@dataclass(frozen=True)
class Spent:
    """What a client, or all of them together, spent over a run: training rounds only, no scoring or calibration."""

    jobs: int = 0
    down: int = 0  # bytes
    up: int = 0  # bytes
    macs: int = 0  # of all training batches
    memory: int = 0  # bytes, in the largest of its rounds

    def __add__(self, other: "Spent") -> "Spent":
        jobs, down, up, macs = map(add, astuple(self)[:4], astuple(other)[:4])
        return Spent(jobs, down, up, macs, max(self.memory, other.memory))


def account_for(
    method: str, build: Build, image: Image, *, atom: Width, budgets: Iterable[Width], batch: int = 32
) -> Account:
    """The account of a method, by its name or its settings (`{name="fedavg", width="1/4"}`), for given budgets."""
    if batch < 2:
        raise UserError(f"batch {batch} is too small; norms need 2 images or more")
    _, settings = parse_override(f"method={method}")
    named = settings if isinstance(settings, Mapping) else method
    made = find_method(named, Setting(atom, tuple(sorted(set(budgets))), seed=0))
    return Account(made, build, image, made.objective(Plain()), batch)


def account_of(setup: Setup) -> Account:
    """The account of a run."""
    plan = setup.how.plan
    norm = "tracked" if setup.tracked and setup.config.norm == "post" else setup.config.norm
    return Account(setup.method, setup.net.build, setup.image, setup.objective, plan.batch, plan.epochs, norm)


def client_cost(account: Account, parts: Sequence[Part]) -> ClientCost:
    """What a client spends in a round in which it trains these parts.

    MACs of a batch are 3 * forward * batch * (sum over the nets that the batch trains), without what an attack adds.
    """
    if not parts:
        return ClientCost()
    whole = covering(parts)
    costs = [account.cost_at(*(part.width for part in draw)) for draw in drawn_together(account.objective, parts)]
    forward = round(Fraction(sum(cost.macs for cost in costs), len(costs)))
    parameters = account.cost_at(whole[0].width).parameters * len(whole)
    down, up = _numbers(account.net, account.norm, whole[0].width)
    inner = sum(account.tracked_at(width) for width in {part.width for part in parts} - {whole[0].width})
    return ClientCost(
        in_words(account.objective, parts),
        forward,
        training_macs(forward, account.batch),
        training_bytes(parameters, max(cost.activations for cost in costs), account.batch),
        (down + inner) * len(whole),
        (up + inner) * len(whole),
    )


def budget_costs(account: Account, budgets: Iterable[Width]) -> dict[Width, ClientCost]:
    """What a round asks of a client of each budget."""
    assign = account.method.assign
    return {budget: client_cost(account, assign(0, [Profile(0, budget, samples=1)])[0]) for budget in budgets}


def drawn_together(objective: Objective, parts: Sequence[Part]) -> list[tuple[Part, ...]]:
    """The sets of parts that a batch may train, each as likely as the others: all parts, unless a width is drawn.

    >>> nested = [Part(0, Width(1, 2)), Part(0, Width(1))]
    >>> [[str(part.width) for part in draw] for draw in drawn_together(DrawnWidth(distill=True), nested)]
    [['1', '1/2'], ['1']]
    """
    if not isinstance(objective, DrawnWidth):
        return [tuple(parts)]
    groups = list(group_by_width(parts).values())
    widest = max(groups, key=lambda group: group[0].width)
    return [group if not objective.distill or group is widest else (*widest, *group) for group in groups]


def in_words(objective: Objective, parts: Sequence[Part]) -> str:
    """What a client trains, such as `4 x 1/8`, `1/8 + 1/4` (both on every batch) or `1/8 | 1/4` (one of them)."""
    sizes = [(str(width), len(group)) for (width, _), group in group_by_width(parts).items()]
    names = [name if count == 1 else f"{count} x {name}" for name, count in sizes]
    if not isinstance(objective, DrawnWidth) or len(names) == 1:
        return " + ".join(names)
    return " | ".join(f"{names[-1]} + {name}" if objective.distill and name != names[-1] else name for name in names)


def replay(method: Method, profiles: Profiles, how: Federation) -> Iterator[tuple[Profile, tuple[Part, ...]]]:
    """Every job of a run, as it was or will be handed out: the client, and the parts that it trains."""
    asked = 0
    for round in range(how.rounds):
        cohort = draw_cohort(profiles(round), how.cohort, how.seed, round)
        assigned = method.after(asked).assign(round, cohort)
        asked += len(cohort)
        yield from ((profile, parts) for profile in cohort if (parts := assigned.get(profile.client, ())))


def run_costs(account: Account, profiles: Profiles, how: Federation) -> dict[int, Spent]:
    """What each client spends over a whole run; `sum(found.values(), Spent())` is the run's total.

    Every sample is trained on once in an epoch, so a client's MACs are 3 * forward * samples * epochs in a round.
    """
    spent = {profile.client: Spent() for profile in profiles(0)}
    priced = cache(partial(client_cost, account))
    for profile, parts in replay(account.method, profiles, how):
        cost = priced(tuple(Part(part.base, part.width) for part in parts))  # a shift costs nothing
        macs = training_macs(cost.forward, profile.samples * account.epochs)
        spent[profile.client] += Spent(1, FLOAT * cost.down, FLOAT * cost.up, macs, cost.memory)
    return spent


def mix_table(net: str, build: Build, image: Image, atom: Width, widths: Iterable[Width]) -> Table:
    """Each width as a mix of bases, and as a single net beside it."""
    columns = [
        *(Column("width", "width"), Column("bases", "bases"), *COUNTS),
        Column("single_parameters", "parameters of one net", human),
        Column("single_macs", "MACs of one net", human),
    ]
    caption = "multiply-accumulates of convolutions and linears for one image; a mix of bases against one net as wide"
    rows = [list(row.values()) for row in cost_rows(build, image, atom, widths)]
    return Table(f"Cost of {net}", columns, rows, caption)


def serving_table(net: str, account: Account, widths: Sequence[Width] = ()) -> Table:
    """What each of the widths costs to serve; all that the method serves, if none are given."""
    served = {
        width: [part.width for part in account.method.compose(width)] for width in widths or account.method.widths
    }
    rows = [[str(width), len(parts), *astuple(account.cost_at(*parts))] for width, parts in served.items()]
    caption = "multiply-accumulates of convolutions and linears for one image, through all parts that serve a width"
    return Table(f"Cost of {net}", [Column("width", "width"), Column("parts", "parts"), *COUNTS], rows, caption)


def client_table(account: Account, budgets: Iterable[Width]) -> Table:
    """What a round asks of a client of each budget."""
    columns = [
        *(Column("budget", "budget"), Column("trains", "trains", number=False)),
        *(Column("forward", "MACs per image", human), Column("macs", "MACs per batch", human)),
        Column("memory", "memory", lambda value: f"{human(value)}B"),
        *(Column("down", "download", human), Column("up", "upload", human)),
    ]
    caption = (
        f"MACs: of one image forward, through all nets that train on it; of a batch of {account.batch}, forward and "
        "backward. Memory: parameters, gradients, momenta and activations, nothing else. Download and upload: "
        "parameters. 'a + b' train on every batch, 'a | b' means one of them, drawn for each batch."
    )
    rows = [[str(budget), *astuple(found)] for budget, found in budget_costs(account, budgets).items()]
    return Table(f"A client's round under {type(account.method).__name__}", columns, rows, caption)


def budgets_for(text: str, atom: Width) -> tuple[Width, ...]:
    """The different budgets that a text names; without a text those of the paper that hold whole atoms."""
    if not text:
        return tuple(width for width in PAPER if width % atom == 0) or (atom,)
    return tuple(sorted(set(parse_budgets(text, clients=1000).at(0))))


PAPER = (Width(1, 8), Width(1, 4), Width(1, 2), Width(1))
COUNTS = [Column(name.lower(), name, human) for name in ("parameters", "MACs", "activations")]
_counted = lru_cache(maxsize=512)(cost)


@lru_cache(maxsize=32)
def _weightless_net(build: Build) -> Net:
    return Net(weightless(build))


@lru_cache(maxsize=512)
def _numbers(net: Net, norm: str, width: Width) -> tuple[int, int]:
    shapes, statistics = net.shapes(width), net.statistic_names(width)
    travelling = shapes.keys() if norm in ("tracked", "local") else shapes.keys() - statistics
    private = net.norm_names(width) if norm == "local" else set()
    down, up = (sum(shapes[name].numel() for name in names) for names in (travelling, travelling - private))
    return down, up
