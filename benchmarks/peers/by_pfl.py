"""pfl-research: one process with all threads, or several of one thread each under `torch.distributed`."""

import sys
from itertools import chain
from typing import Any

import torch
from peers.work import Work, say, words
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Learner(nn.Module):
    """The plain net, with the loss that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.train()
        return nn.functional.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {}


class Turns(TrainingProcessCallback):
    """Waits for a word before each round; the first of several processes hears it, the others wait for that one."""

    def __init__(self, work: Work, learner: Learner) -> None:
        self.work, self.learner, self.words, self.rounds = work, learner, words(), 0

    def on_train_begin(self, *, model: Any) -> Metrics:
        if first():
            say(ready=True)
        self.wait()
        return Metrics()

    def after_central_iteration(self, aggregate: Any, model: Any, *, central_iteration: int) -> tuple[bool, Metrics]:
        self.rounds += 1
        if first():
            say(done=self.rounds)
        return self.wait(), Metrics()

    def wait(self) -> bool:
        """Whether there is no more to do."""
        over = torch.zeros(1)
        if first():
            word = next(self.words, None)
            while word == "score":
                self.learner.eval()
                say(accuracy=self.work.accuracy(self.learner.net))
                word = next(self.words, None)
            over += word is None
        pytorch_ops.distributed.all_reduce([over])
        return bool(over > 0)


def first() -> bool:
    return pytorch_ops.distributed.global_rank == 0


def main() -> None:
    work = Work.read(sys.argv[1])
    learner = Learner(work.fresh())
    users = {client: PyTorchTensorDataset(work.images(client)) for client in range(len(work.rows))}
    turns = chain.from_iterable(work.cohorts)
    data = FederatedDataset(users.__getitem__, lambda: next(turns))
    central = torch.optim.SGD(learner.parameters(), 1.0)
    model = PyTorchModel(learner, work.sgd, central)
    FederatedAveraging().run(
        NNAlgorithmParams(len(work.cohorts), 10**9, len(work.cohorts[0]), None),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_learning_rate=work.lr, local_num_epochs=1, local_batch_size=work.batch),
        callbacks=[Turns(work, learner)],
    )


if __name__ == "__main__":
    main()
