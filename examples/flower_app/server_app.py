"""Split-Mix on Flower, the server: draw clients, hand out bases, merge what comes back, and score every width."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from splitmix.core.rounds import RoundReport, federate
from splitmix.core.score import score
from splitmix.core.types import Question
from splitmix.core.width import parse_width
from splitmix.flower.fleet import Fleet
from splitmix.flower.server import STRANGERS, client_count, remote_engine, remote_setup
from splitmix.flower.wire import Agreement
from splitmix.runs.config import make_config

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    # any setting of `splitmix settings`; updates of strangers that go too far are shortened
    config = make_config({**STRANGERS, **context.run_config, "norm": "tracked"})

    # who is there: each node is asked for its client number, budget, and how many images it has
    fleet = Fleet(grid, Agreement(config).text(), client_count(config), parse_width(config.atom))
    fleet.gather(wait=120)

    # net, method, budgets, learning rates: all that follows from the settings
    setup = remote_setup(config, fleet)
    engine = remote_engine(setup, fleet)

    # the rounds: a client receives and returns only the bases that it trains
    weights = federate(
        setup.method, engine, setup.net, setup.fresh_weights(), setup.how, on_round=lambda report: tell(report)
    )

    # one model, any width: a mix of the first bases, scored by the clients themselves
    mixes = {width: setup.method.compose(width) for width in setup.method.widths}
    for row in score(engine, weights, mixes, setup.domains, Question("test")):
        print(f"width {row.width}: {100 * row.accuracy:.1f} % of the test images")


def tell(report: RoundReport) -> None:
    mb = report.bytes_down / 1e6
    print(f"round {report.round + 1}: loss {report.loss:.3f}, {mb:.1f} MB down, {report.seconds:.1f} s", flush=True)
