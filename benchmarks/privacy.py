"""What privacy costs: accuracy of each width beside epsilon, and how well an attacker tells who took part.

python benchmarks/privacy.py

Short runs on `mini` with many clients: they show how things move together, not how good they can get.
"""

from collections.abc import Iterator
from time import process_time

from evidence import Row, publish

from splitmix.core.rounds import draw_cohort, make_jobs
from splitmix.methods.privacy import Gaussian
from splitmix.runs.config import Config, make_config
from splitmix.runs.finish import finish
from splitmix.runs.run import train_rounds
from splitmix.runs.setup import set_up

CLIP, NOISES, TRIALS = 1.0, (0.0, 0.1, 0.3, 1.0, 3.0), 20
SETTINGS: dict[str, object] = {
    **{"task": "mini", "clients": 60, "partition": "iid", "budgets": "1/8 1/4", "rounds": 6, "order": "natural"},
    **{"eval_every": 6, "schedule": "constant"},
}


def main() -> None:
    began, advantages = process_time(), dict(attacked(make_config(SETTINGS)))
    rows = [row for noise in (None, *NOISES) for row in scored(noise)]
    for row in rows:
        row["advantage"] = advantages.get(row["noise"])
    print(publish("privacy", [{**row, "seconds": round(process_time() - began)} for row in rows]))


def scored(noise: float | None) -> Iterator[Row]:
    """A run with so much noise, or without privacy: a row for each width."""
    privacy = {} if noise is None else {"privacy": {"clip": CLIP, "noise": noise}}
    setup = set_up(make_config(SETTINGS | privacy))
    with setup.engine(workers=1) as engine:
        result = finish(setup, engine, train_rounds(setup, engine)).result
    for row in result["scores"]:
        if row["norm"] == "client":
            told = {
                "noise": noise,
                "epsilon": result.get("epsilon"),
                "width": row["width"],
                "accuracy": row["accuracy"],
            }
            yield {"settings": SETTINGS, "clip": CLIP, "delta": Gaussian.delta, **told}


def attacked(config: Config) -> Iterator[tuple[float, float]]:
    """How much better than by chance someone who knows a client's update tells a round with it from one without."""
    setup = set_up(config)
    net, layout, start = setup.net, setup.method.layout, setup.fresh_weights()
    with setup.engine(workers=1) as engine:
        cohort = draw_cohort(engine.profiles(0), None, 0, 0)
        jobs = make_jobs(setup.method.assign(0, cohort), cohort, 0, setup.how.plan, setup.how)
        updates = list(engine.run(start, jobs))
    known, others = updates[0], updates[1:]
    rows = [part.base for part in known.parts]
    guess = {name: value - start[name][rows] for name, value in known.weights.items()}
    for noise in NOISES:
        privacy, likeness = Gaussian(CLIP, noise), {True: list[float](), False: list[float]()}
        for there in likeness:
            for seed in range(TRIALS):
                found = privacy.merge(net, layout, start, jobs, updates if there else others, seed)
                moved = {name: found[name][rows] - start[name][rows] for name in guess}
                likeness[there].append(sum(float((moved[name] * guess[name]).sum()) for name in guess))
        right = sum((a > b) + (a == b) / 2 for a in likeness[True] for b in likeness[False])
        yield noise, 2 * right / TRIALS**2 - 1


if __name__ == "__main__":
    main()
