"""Trust at the door: what is no answer to its job is dropped alone, what is too large is clipped, the run goes on."""

import math
import weakref
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
import torch

from splitmix.core.door import Door, Rejected, fair, root_mean_square, sound
from splitmix.core.net import Net
from splitmix.core.parts import cut, merge
from splitmix.core.rounds import Federation, federate, make_jobs
from splitmix.core.score import Question, calibrate, score
from splitmix.core.types import Calibrate, Missing, Profile, Score, Tally, Train, Update, Width
from toys import ATOM, LAYOUT, METHOD, PLAN, Tiny, ToyClients, bases, to_bytes, toy_simulator, toy_weights

NET, WEIGHTS, TRACKED = Net(Tiny), toy_weights(), toy_weights(tracked=True)
PROFILES = [Profile(client, Width(1), samples=10) for client in range(9)]


def job(client=0, *numbers, **settings):
    return Train(0, client, bases(*numbers or (1, 2)), PLAN, seed=1, run="a", **settings)


def answer(to, *, by=0.01, weights=WEIGHTS, **changed):
    """An honest answer, each of whose numbers moved by as much."""
    moved = {name: value + by for name, value in cut(NET, LAYOUT, weights, to.parts).items()}
    return replace(Update(to.round, to.client, to.parts, moved, 10, {"loss": 1.0}, run=to.run), **changed)


def through(answers, jobs, *, weights=WEIGHTS, **settings):
    """What the door lets pass, and the door."""
    door = Door(NET, LAYOUT, weights, PROFILES, **settings)
    return list(door.admitted(jobs, answers)), door


# --- what is no answer to its job --------------------------------------------------------------------------------


def edited(update, **entries):
    """The update with other entries; None takes one away."""
    weights = {name: value for name, value in (update.weights | entries).items() if value is not None}
    return replace(update, weights=weights)


def filled(update, name, number):
    value = update.weights[name].clone()
    value.view(-1)[-1] = number
    return edited(update, **{name: value})


FC = "fc2.weight"  # (base, 3, 2)
FAULTS = {
    "another run's": ("run", lambda u: replace(u, run="b")),
    "an old round's": ("round", lambda u: replace(u, round=-1)),
    "another client's": ("client", lambda u: replace(u, client=7)),
    "a base it was not given": ("parts", lambda u: replace(u, parts=bases(1, 3))),
    "a base too many": ("parts", lambda u: replace(u, parts=bases(1, 2, 3))),
    "another width": ("parts", lambda u: replace(u, parts=bases(1, 2, width=Width(1, 2)))),
    "no samples": ("samples", lambda u: replace(u, samples=0)),
    "negative samples": ("samples", lambda u: replace(u, samples=-10)),
    "more samples than registered": ("samples", lambda u: replace(u, samples=11)),
    "very many samples": ("samples", lambda u: replace(u, samples=10**18)),
    "half a sample": ("samples", lambda u: replace(u, samples=0.5)),
    "true samples": ("samples", lambda u: replace(u, samples=True)),
    "no loss": ("loss", lambda u: replace(u, metrics={})),
    "a loss in words": ("loss", lambda u: replace(u, metrics={"loss": "low"})),
    "an endless loss": ("loss", lambda u: replace(u, metrics={"loss": math.inf})),
    "an entry too many": ("keys", lambda u: edited(u, more=torch.zeros(2))),
    "an entry too few": ("keys", lambda u: edited(u, **{FC: None})),
    "nothing": ("keys", lambda u: replace(u, weights={})),
    "another shape": ("shape", lambda u: edited(u, **{FC: torch.zeros(2, 2, 3)})),
    "a single number": ("shape", lambda u: edited(u, **{FC: torch.zeros(1)})),
    "an oversized array": ("shape", lambda u: edited(u, **{FC: torch.zeros(2, 3000, 200)})),
    "a sparse array": ("shape", lambda u: edited(u, **{FC: u.weights[FC].to_sparse()})),
    "doubles": ("dtype", lambda u: edited(u, **{FC: u.weights[FC].double()})),
    "integers": ("dtype", lambda u: edited(u, **{FC: u.weights[FC].int()})),
    "no tensor": ("dtype", lambda u: edited(u, **{FC: [[0.0] * 6] * 2})),
    "NaN": ("finite", lambda u: filled(u, FC, math.nan)),
    "Inf": ("finite", lambda u: filled(u, FC, -math.inf)),
    "a distance beyond measure": ("size", lambda u: filled(u, FC, 3e38)),
    "no update at all": ("kind", lambda u: "hello"),
    "a tally": ("kind", lambda u: Tally(0, (1,), 1)),
    "what the engine could not read": ("unreadable", lambda u: Rejected(0, "unreadable", "it is no safetensors")),
}


@pytest.mark.parametrize("what", FAULTS)
def test_an_update_with_a_fault_is_dropped_alone(what):
    kind, spoil = FAULTS[what]
    jobs = [job(0), job(1), job(2)]
    passed, door = through([answer(jobs[0]), spoil(answer(jobs[1])), answer(jobs[2])], jobs)
    assert [update.client for update in passed] == door.seen.accepted == [0, 2]
    assert [(one.client, one.kind) for one in door.seen.rejected] == [(1, kind)]
    assert 0 < len(door.seen.rejected[0].reason) < 120
    assert door.seen.updates == Counter({1: 2, 2: 2})


def test_an_honest_update_passes_as_it_is():
    honest = answer(job())
    (passed,), door = through([honest], [job()], clip=5.0)
    assert passed == honest
    assert all(passed.weights[name] is value for name, value in honest.weights.items())
    assert door.seen.clipped == []


def test_a_variance_below_zero_is_no_variance():
    honest = answer(job(), weights=TRACKED)
    spoilt = filled(honest, "norm1.clean.running_var", -1e-6)
    _, door = through([spoilt], [job()], weights=TRACKED)
    assert door.seen.rejected[0].kind == "variance"
    assert through([honest], [job()], weights=TRACKED)[0]


def test_norms_that_stay_on_a_client_may_not_be_sent():
    asked = job(local_norms=True)
    private = NET.norm_names(ATOM)
    whole = answer(asked)
    without = replace(whole, weights={name: value for name, value in whole.weights.items() if name not in private})
    assert through([without], [asked])[0]
    assert through([whole], [asked])[1].seen.rejected[0].kind == "keys"


def test_who_did_not_come_is_noted_with_the_reason():
    passed, door = through([Missing(0, "late"), answer(job(1))], [job(0), job(1)])
    assert len(passed) == 1
    assert door.seen.missing == [Missing(0, "late")]


@pytest.mark.parametrize("answers", [[], [answer(job())] * 2])
def test_an_engine_that_skips_or_repeats_an_answer_is_wrong(answers):
    with pytest.raises(RuntimeError, match="one answer for each job"):
        through(answers, [job()])


def test_all_bytes_that_came_are_counted():
    honest = answer(job())
    size = sum(value.nbytes for value in honest.weights.values())
    _, door = through([honest, replace(honest, client=7), Missing(2, "late")], [job(0), job(1), job(2)])
    assert door.seen.bytes_up == 2 * size


def test_the_words_of_a_stranger_are_cut_short():
    strange = replace(answer(job()), client="x\x1b[31m" * 1000)
    _, door = through([strange], [job()])
    assert len(door.seen.rejected[0].reason) < 120
    assert door.seen.rejected[0].reason.isprintable()


# --- how far an update may go ------------------------------------------------------------------------------------


def far(update, weights=WEIGHTS):
    old = cut(NET, LAYOUT, weights, update.parts)
    return root_mean_square({name: value - old[name] for name, value in update.weights.items()}).tolist()


USUAL = {"parameters": 0.1, "steps": 3.0}  # ten samples in batches of four


def test_an_update_that_goes_too_far_is_brought_back_to_what_is_usual():
    (passed,), door = through([answer(job(), by=0.51)], [job()], clip=5.0, usual=USUAL)
    assert far(passed) == pytest.approx([0.1, 0.1], rel=1e-4)
    assert door.seen.clipped == door.seen.accepted == [0]


def test_an_update_within_the_bound_is_left_alone():
    (passed,), door = through([answer(job(), by=0.49)], [job()], clip=5.0, usual=USUAL)
    assert far(passed) == pytest.approx([0.49, 0.49], rel=1e-4)
    assert door.seen.clipped == []


def test_its_direction_stays():
    sent = answer(job(), by=100.0)
    (passed,), _ = through([sent], [job()], clip=5.0, usual=USUAL)
    old = cut(NET, LAYOUT, WEIGHTS, sent.parts)
    moved = {name: value - old[name] for name, value in passed.weights.items()}
    assert all((value - 0.1).abs().max() < 1e-4 for value in moved.values())


def test_each_base_has_its_own_bound():
    sent = answer(job())
    one = {
        name: value + torch.tensor([0.0, 9.0]).view(-1, *[1] * (value.dim() - 1))
        for name, value in sent.weights.items()
    }
    (passed,), _ = through([replace(sent, weights=one)], [job()], clip=5.0, usual=USUAL)
    assert all(torch.equal(passed.weights[name][0], value[0]) for name, value in one.items())
    assert far(passed)[1] == pytest.approx(0.1, rel=1e-4)


def test_without_a_bound_nothing_is_too_far():
    (passed,), door = through([answer(job(), by=1e4)], [job()], clip=0.0, usual=USUAL)
    assert far(passed)[0] == pytest.approx(1e4, rel=1e-3)
    assert door.seen.clipped == []


def test_in_the_first_round_a_base_that_goes_too_far_moves_by_its_own_size():
    size = root_mean_square(cut(NET, LAYOUT, WEIGHTS, bases(1, 2)))
    (passed,), _ = through([answer(job(), by=1e4)], [job()], clip=5.0)
    assert far(passed) == pytest.approx(size.tolist(), rel=1e-3)


def test_statistics_have_a_bound_of_their_own():
    usual = USUAL | {"statistics": 1.0}
    (passed,), _ = through([answer(job(), by=3.0, weights=TRACKED)], [job()], weights=TRACKED, clip=5.0, usual=usual)
    old = cut(NET, LAYOUT, TRACKED, passed.parts)
    moved = {name: float((value - old[name]).mean()) for name, value in passed.weights.items()}
    assert moved["norm1.clean.running_mean"] == pytest.approx(3.0)
    assert moved["fc1.weight"] == pytest.approx(0.1, rel=1e-3)


def test_more_steps_may_go_further():
    profiles = [replace(PROFILES[0], samples=40)]
    door = Door(NET, LAYOUT, WEIGHTS, profiles, clip=5.0, usual=USUAL)
    (passed,) = door.admitted([job()], [answer(job(), by=100.0, samples=36)])  # nine steps, where three are usual
    assert far(passed) == pytest.approx([0.3, 0.3], rel=1e-4)


def test_claiming_ever_more_steps_does_not_help():
    profiles = [replace(PROFILES[0], samples=10**18)]
    door = Door(NET, LAYOUT, WEIGHTS, profiles, clip=5.0, usual=USUAL)
    (passed,) = door.admitted([job()], [answer(job(), by=100.0, samples=10**18)])
    assert far(passed) == pytest.approx([0.5, 0.5], rel=1e-4)  # five times the usual, and no more


def test_usual_is_the_median_of_the_clients_with_a_vote_each():
    jobs = [job(0), job(1, 0), job(2), job(3, 0, 1, 2, 3)]
    distances = [0.1, 0.2, 0.3, 0.4]
    _, door = through([answer(j, by=d) for j, d in zip(jobs, distances, strict=True)], jobs)
    assert door.usual_next() == pytest.approx({"parameters": 0.2, "steps": 3.0}, rel=1e-4)  # the lower of the two


def test_what_is_usual_grows_no_faster_than_the_bound():
    jobs = [job(client) for client in range(5)]
    _, door = through([answer(j, by=1e3) for j in jobs], jobs, clip=5.0, usual=USUAL)
    assert door.usual_next()["parameters"] == pytest.approx(0.5, rel=1e-4)


def test_two_clients_do_not_say_what_is_usual():
    jobs = [job(0), job(1)]
    _, door = through([answer(j, by=0.3) for j in jobs], jobs, clip=5.0, usual=USUAL)
    assert door.usual_next() == USUAL


def test_a_round_in_which_nothing_moved_sets_no_bound():
    jobs = [job(client) for client in range(3)]
    _, door = through([answer(j, by=0.0) for j in jobs], jobs, clip=5.0)
    (passed,), later = through([answer(job(), by=0.1)], [job()], clip=5.0, usual=door.usual_next())
    assert later.seen.clipped == []
    assert far(passed)[0] == pytest.approx(0.1, rel=1e-3)


def test_the_bound_is_the_same_however_the_tensors_lie_in_memory():
    sent = answer(job(), by=100.0)
    lying = {name: value.transpose(0, -1).contiguous().transpose(0, -1) for name, value in sent.weights.items()}
    results = [through([replace(sent, weights=w)], [job()], clip=5.0, usual=USUAL)[0][0] for w in (sent.weights, lying)]
    assert to_bytes(results[0].weights) == to_bytes({n: v.contiguous() for n, v in results[1].weights.items()})


# --- scores and norm statistics ----------------------------------------------------------------------------------

ASKED = Score(3, (bases(0), bases(0, 1)))


@pytest.mark.parametrize(
    ("tally", "good"),
    [
        (Tally(3, (4, 5), 5), True),
        (Tally(3, (0, 0), 0), True),
        (Tally(2, (4, 5), 5), False),
        (Tally(3, (4,), 5), False),
        (Tally(3, (6, 5), 5), False),
        (Tally(3, (-1, 5), 5), False),
        (Tally(3, (4, 5.0), 5), False),
        (Tally(3, (0, 0), -5), False),
        (Missing(3, "late"), False),
        (None, False),
    ],
)
def test_a_tally_counts_what_was_asked(tally, good):
    assert fair(ASKED, tally) == good


def moments(client=0, **changed):
    found = {"norm1.clean.running_mean": torch.zeros(4, 2), "norm1.clean.running_var": torch.ones(4, 2)}
    return replace(Update(0, client, bases(0, 1, 2, 3), found, 10), **changed)


def test_norm_statistics_are_checked_like_updates():
    asked, like = Calibrate(0, bases(0, 1, 2, 3)), {name: TRACKED[name] for name in NET.statistic_names(ATOM)}
    assert sound(asked, moments(), like, 10)
    assert not sound(asked, moments(samples=11), like, 10)
    assert not sound(asked, moments(client=1), like, 10)
    assert not sound(asked, filled(moments(), "norm1.clean.running_mean", math.nan), like, 10)
    assert not sound(asked, filled(moments(), "norm1.clean.running_var", -1.0), like, 10)
    assert not sound(asked, edited(moments(), more=torch.zeros(4)), like, 10)
    assert not sound(asked, Missing(0, "late"), like, 10)


@dataclass
class Tampered:
    """The simulator, whose clients' answers pass through a function of job and answer."""

    tamper: object
    engine: object = field(default_factory=toy_simulator)

    def profiles(self, round):
        return self.engine.profiles(round)

    def run(self, weights, jobs):
        if isinstance(self.tamper, Attacker):
            self.tamper.weights = weights
        for asked, got in zip(jobs, self.engine.run(weights, jobs), strict=True):
            yield self.tamper(asked, got)


def test_scores_and_calibration_do_without_those_who_fail():
    def fails(asked, got):
        if asked.client == 1:
            return Missing(1, "died")
        if asked.client == 2:
            return replace(got, samples=10**18) if isinstance(got, Update) else replace(got, correct=(10**18,))
        return got

    engine, clients = Tampered(fails), [0, 1, 2, 3]
    found = calibrate(engine, NET, LAYOUT, WEIGHTS, clients, 8)
    fewer = calibrate(engine.engine, NET, LAYOUT, WEIGHTS, [0, 3], 8)
    assert to_bytes(found) == to_bytes(fewer)
    (scored,) = score(engine, WEIGHTS, {ATOM: bases(0)}, dict.fromkeys(clients, "all"), Question())
    assert len(scored.clients) == 2


def test_calibration_is_the_mean_by_samples():
    engine, clients = toy_simulator(), [0, 1, 2, 3]
    asked = [Calibrate(client, bases(0, 1, 2, 3), 8) for client in clients]
    blank = {name: torch.zeros_like(TRACKED[name]) for name in NET.statistic_names(ATOM)}
    merged = merge(NET, LAYOUT, blank, engine.run(WEIGHTS, asked))
    found = calibrate(engine, NET, LAYOUT, WEIGHTS, clients, 8)
    assert found["norm1.clean.running_mean"].numpy().tobytes() == merged["norm1.clean.running_mean"].numpy().tobytes()


# --- whole runs --------------------------------------------------------------------------------------------------

CLIENTS = ToyClients((24, 20, 28, 16, 24, 32, 20, 24), (ATOM, ATOM, Width(1, 2), Width(1)) * 2)
ATTACKER = 3  # it is given all bases


@dataclass
class Attacker:
    """One client that sends another kind of harm in each round."""

    tricks: tuple[str, ...]
    weights: dict = field(default_factory=dict)  # of the server
    before: object = None

    def __call__(self, asked, got):
        if asked.client != ATTACKER or not isinstance(asked, Train):
            return got
        bad = getattr(self, self.tricks[asked.round % len(self.tricks)])(got, FC)
        self.before = got
        return bad

    def nan(self, u, name):
        return filled(u, name, math.nan)

    def inf(self, u, name):
        return filled(u, name, math.inf)

    def shape(self, u, name):
        return edited(u, **{name: u.weights[name].transpose(1, 2)})

    def single(self, u, name):
        return edited(u, **{name: torch.full((1,), 9.0)})

    def extra(self, u, name):
        return edited(u, more=u.weights[name])

    def less(self, u, name):
        return edited(u, **{name: None})

    def foreign(self, u, name):
        return replace(u, parts=tuple(replace(part, base=(part.base + 1) % 4) for part in u.parts))

    def many(self, u, name):
        return replace(u, samples=10**18)

    def negative(self, u, name):
        return replace(u, samples=-u.samples)

    def none(self, u, name):
        return replace(u, samples=0)

    def far(self, u, name):
        return replace(
            u,
            weights={
                n: 1e4 * torch.randn(v.shape, generator=torch.Generator().manual_seed(1)) for n, v in u.weights.items()
            },
        )

    def backwards(self, u, name):
        old = cut(NET, LAYOUT, self.weights, u.parts)
        return replace(u, weights={n: old[n] - 1e4 * (v - old[n]) for n, v in u.weights.items()})

    def old(self, u, name):
        return self.before

    def twice(self, u, name):
        """What it sent before, under a new name."""
        return replace(self.before, round=u.round, parts=u.parts)

    def oversized(self, u, name):
        return edited(u, **{name: torch.zeros(4, 300, 2000)})


TRICKS = (
    *("nan", "inf", "shape", "single", "extra", "less", "foreign", "many", "negative", "none"),
    *("far", "old", "twice", "oversized"),
)


def run_with(tamper, *, rounds, **settings):
    """The weights and the reports of a run whose answers are tampered with."""
    reports = []
    how = Federation(rounds, replace(PLAN, batch=8), seed=2, **settings)
    engine = Tampered(tamper, toy_simulator(CLIENTS))
    weights = federate(METHOD, engine, engine.engine.net, toy_weights(), how, on_round=reports.append)
    return weights, reports


def honest(asked, got):
    return got


def absent(asked, got):
    return Missing(ATTACKER, "away") if asked.client == ATTACKER else got


def accuracy(weights):
    """Of the widest mix, on ninety images of each client."""
    many = toy_simulator(replace(CLIENTS, sizes=(90,) * 8))
    (scored,) = score(many, weights, {Width(1): bases(0, 1, 2, 3)}, dict.fromkeys(range(8), ""), Question())
    return scored.pooled


@pytest.fixture(scope="module")
def without():
    """The accuracy of a run that the attacker takes no part in."""
    return accuracy(run_with(absent, rounds=len(TRICKS))[0])


@pytest.mark.slow
def test_one_client_that_tries_everything_harms_nothing(without):
    attacked, reports = run_with(Attacker(TRICKS), rounds=len(TRICKS))
    assert without > 0.95
    assert abs(accuracy(attacked) - without) <= 0.01
    for trick, report in zip(TRICKS, reports, strict=True):
        assert len(report.seen.accepted) == 7 + (trick in ("far", "twice"))
        assert (ATTACKER in report.seen.clipped) == (trick == "far")
        assert [one.client for one in report.seen.rejected] == [ATTACKER] * (trick not in ("far", "twice"))


@pytest.mark.slow
@pytest.mark.parametrize("trick", ["far", "backwards"])
def test_going_too_far_in_every_round_from_the_first_on_harms_nothing(without, trick):
    attacked, reports = run_with(Attacker((trick,)), rounds=len(TRICKS))
    assert all(ATTACKER in report.seen.clipped for report in reports)
    assert accuracy(attacked) >= without - 0.01


def test_without_the_door_one_client_is_enough_to_end_it():
    weights, _ = run_with(Attacker(("far",)), rounds=1, clip=0.0)
    assert max(float(value.abs().max()) for value in weights.values()) > 100


@pytest.mark.slow
@pytest.mark.parametrize("tracked", [False, True])
def test_where_all_are_honest_the_door_changes_no_bit(tracked):
    weights, engine = toy_weights(tracked=tracked), toy_simulator(CLIENTS)
    how, plain, reports = Federation(4, PLAN, seed=2), weights, []
    guarded = federate(METHOD, engine, NET, weights, how, on_round=reports.append)
    for round in range(4):
        cohort = engine.profiles(round)
        plan = replace(PLAN, lr=PLAN.lr * how.schedule(round, 4))
        jobs = make_jobs(METHOD.assign(round, cohort), cohort, round, plan, how)
        plain = merge(NET, LAYOUT, plain, engine.run(plain, jobs))
    assert to_bytes(guarded) == to_bytes(plain)
    assert not any(report.seen.clipped for report in reports)


def test_one_update_is_in_memory_at_a_time():
    alive, most = [], []

    def watch(asked, got):
        alive.append(weakref.ref(got))
        most.append(sum(one() is not None for one in alive))
        return got

    run_with(watch, rounds=2)
    assert max(most) <= 3  # that which comes, that which goes, and the one that the simulator still holds
