"""The paper's loop, as one would port it: one process with all threads, base after base."""

import sys

import torch
from peers.work import Work, serve
from reference import plain_round
from torch import Tensor


def main() -> None:
    work = Work.read(sys.argv[1])
    bases = [work.fresh(base) for base in range(len(work.start))]
    images, labels = work.x.numpy(), work.y.numpy()

    def train(round: int) -> None:
        mine = [work.rows[client].numpy() for client in work.cohorts[round]]
        clients = [(images[rows], labels[rows]) for rows in mine]
        plain_round(bases, clients, work.parts[round], batch=work.batch, lr=work.lr)

    def predict(x: Tensor) -> Tensor:
        return torch.stack([base(x) for base in bases]).mean(0)

    serve(train, lambda: work.accuracy(predict))


if __name__ == "__main__":
    main()
