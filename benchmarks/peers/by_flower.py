"""Flower's simulation: FedAvg on Ray, one actor per core of one thread each, which is what it does best on a CPU."""

import os
import sys
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peers.work import say, the_work, words
from torch import nn

client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    work, net, said = the_work(), the_work().fresh(), message.content
    net.load_state_dict(said.array_records["arrays"].to_torch_state_dict())
    net.train()
    x, y = work.images(int(str(said.config_records["config"]["client"])))
    optimizer = work.sgd(net.parameters())
    for some, labels in zip(x.split(work.batch), y.split(work.batch), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(some), labels).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


class Dealt(FedAvg):
    """FedAvg whose nodes play the clients that the work names, whichever nodes they are."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for client, message in zip(the_work().cohorts[server_round - 1], messages, strict=True):
            message.content = RecordDict({"arrays": arrays, "config": ConfigRecord({"client": client})})
        return messages

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """As FedAvg does, but a client that failed is no faster client."""
        came = list(replies)
        failed = [reply.error.reason for reply in came if reply.has_error()]
        if failed or len(came) < len(the_work().cohorts[server_round - 1]):
            print(f"{len(came)} replies, {len(failed)} of them failed: {failed[:1]}", file=sys.stderr, flush=True)
            os._exit(1)
        return super().aggregate_train(server_round, came)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    work, heard = the_work(), words()
    net = work.fresh().eval()

    def between(round: int, arrays: ArrayRecord) -> None:
        """After a round, and before the first: say so, and wait for what is next."""
        say(done=round)
        word = next(heard, None)
        while word == "score":
            net.load_state_dict(arrays.to_torch_state_dict())
            say(accuracy=work.accuracy(net))
            word = next(heard, None)
        if word is None:
            os._exit(0)

    cohort = len(work.cohorts[0])
    strategy = Dealt(0.0001, 0.0, min_train_nodes=cohort, min_available_nodes=cohort)
    strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=len(work.cohorts), evaluate_fn=between)


if __name__ == "__main__":
    torch.set_num_threads(1)
    backend: Any = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": len(os.sched_getaffinity(0)), "include_dashboard": False, "log_to_driver": False},
    }
    run_simulation(server_app, client_app, len(the_work().rows), backend_config=backend)
