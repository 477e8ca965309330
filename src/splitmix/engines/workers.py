"""Worker processes on shared memory: weights and updates are written where both sides see them, never pickled."""

import contextlib
import ctypes
import mmap
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from splitmix.core.errors import UserError
from splitmix.core.types import Weights

Answer = Callable[[Weights, Any], tuple[Any, Weights]]  # (weights, task) -> a small picklable answer and tensors
MANY = 500  # entries, whose names are sent with every task
Header = list[tuple[str, torch.dtype, torch.Size, int]]  # name, dtype, shape, offset


class Arena:
    """A piece of memory that forked processes share."""

    def __init__(self, size: int) -> None:
        self.size, self.memory = size, mmap.mmap(-1, size)

    def write(self, tensors: Weights) -> Header:
        header: Header = []
        end = 0
        for name, value in tensors.items():
            header.append((name, value.dtype, value.shape, end))
            end += -(-value.numel() * value.element_size() // 64) * 64  # each begins on a cache line
        if end > self.size:
            raise MemoryError(f"{end} bytes of tensors do not fit the {self.size} bytes that workers share")
        for name, value in self.read(header).items():
            value.copy_(tensors[name])
        return header

    def read(self, header: Header) -> Weights:
        """Views into the shared memory."""
        return {
            name: torch.frombuffer(self.memory, dtype=dtype, count=shape.numel(), offset=offset).view(shape)
            for name, dtype, shape, offset in header
        }


class Workers:
    """Forked processes that answer tasks on shared weights, each one after the other."""

    def __init__(self, answer: Answer, capacity: int, count: int) -> None:
        keep_memory()  # inherited by the workers
        context = multiprocessing.get_context("fork")
        self.weights = Arena(capacity)
        # two slots each: a worker fills one while we still read the other
        self.slots = [(Arena(capacity), Arena(capacity)) for _ in range(count)]
        pipes = [context.Pipe() for _ in range(count)]
        self.pipes = [ours for ours, _ in pipes]
        self.processes = []
        for slots, (_, theirs) in zip(self.slots, pipes, strict=True):
            # a worker closes all ends but its own: else nobody would notice the end of another
            others = [end for pair in pipes for end in pair if end is not theirs]
            arguments = (answer, self.weights, slots, theirs, others, os.getpid())
            self.processes.append(context.Process(target=_serve, args=arguments, daemon=True))
            self.processes[-1].start()
        for _, theirs in pipes:
            theirs.close()

    @staticmethod
    def possible() -> bool:
        """Whether this process may fork: not beside a GPU runtime, and not on systems where it is unsafe."""
        return sys.platform == "linux" and not torch.cuda.is_initialized()

    def run(self, weights: Weights, tasks: Iterable[Any], small: int = 0) -> Iterator[tuple[Any, Weights]]:
        """Answers in the order of the tasks; few of them wait in memory for an earlier one.

        Of `small` tasks the next waits in each worker's pipe, so that none waits for us; but not of the last few, which
        go to whoever is free. Both sides would wait for ever if a pipe had no room for it, as where entries are many.
        """
        header = self.weights.write(weights)
        small = small if len(header) <= MANY else 0
        queue, ready = enumerate(tasks), dict[int, Any]()
        busy: dict[Connection, list[int]] = {pipe: [] for pipe in self.pipes}
        sent = out = 0

        def feed(pipe: Connection, most: int) -> None:
            nonlocal sent
            while len(busy[pipe]) < most and len(ready) < 8 * len(self.pipes):
                if (task := next(queue, None)) is None:
                    return
                self._send(pipe, (header, task[1]))
                busy[pipe].append(task[0])  # only now: what was not sent must not be waited for
                sent += 1

        try:
            while True:
                for pipe in self.pipes:
                    feed(pipe, 2 if small - sent > 2 * len(self.pipes) else 1)
                if not any(busy.values()) and not ready:
                    return
                for pipe in self._answered(pipe for pipe, numbers in busy.items() if numbers):
                    number, message = busy[pipe].pop(0), self._receive(pipe)
                    feed(pipe, 1)  # first give it work, then copy what it did; a second task would write over that
                    ready[number] = self._unpack(pipe, message)
                while out in ready:
                    yield ready.pop(out)
                    out += 1
        finally:
            for pipe, numbers in busy.items():  # the reader stopped early, or a worker ended: let the others finish
                with contextlib.suppress(RuntimeError):
                    for _ in numbers:
                        self._receive(pipe)

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()

    def _answered(self, busy: Iterable[Connection]) -> list[Connection]:
        pipes = list(busy)
        return [pipe for pipe in wait(pipes) if isinstance(pipe, Connection)] if pipes else []

    def _send(self, pipe: Connection, message: Any) -> None:
        try:
            pipe.send(message)
        except ConnectionError:
            raise self._ended(pipe) from None

    def _receive(self, pipe: Connection) -> Any:
        try:
            return pipe.recv()
        except (EOFError, ConnectionError):
            raise self._ended(pipe) from None

    def _ended(self, pipe: Connection) -> RuntimeError:
        process = self.processes[self.pipes.index(pipe)]
        process.join(timeout=5)
        return RuntimeError(
            f"a worker process ended unexpectedly (exit code {process.exitcode}); "
            "if memory ran out, use fewer --workers; then continue with --resume"
        )

    def _unpack(self, pipe: Connection, message: Any) -> tuple[Any, Weights]:
        kind, *content = message
        if kind == "mistake":
            raise UserError(content[0])
        if kind == "failure":
            raise RuntimeError(f"a worker failed:\n{content[0]}")
        slot, answer, header = content
        shared = self.slots[self.pipes.index(pipe)][slot].read(header)
        return answer, {name: value.clone() for name, value in shared.items()}


def keep_memory() -> None:
    """Keep freed memory instead of giving it back after every step: page faults cost a tenth of the time."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for option, value in ((-3, 1 << 30), (-1, (1 << 31) - 1), (-2, 64 << 20)):  # mmap and trim threshold, padding
            library.mallopt(option, value)


def _serve(
    answer: Answer,
    weights: Arena,
    slots: tuple[Arena, Arena],
    pipe: Connection,
    inherited: list[Connection],
    parent: int,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    for other in inherited:
        other.close()
    torch.set_num_threads(1)
    turn = 0
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            while not pipe.poll(1.0):
                if os.getppid() != parent:
                    os._exit(0)
            header, task = pipe.recv()
            pipe.send(_reply(answer, weights.read(header), task, slots[turn], turn))
            turn = 1 - turn
    os._exit(0)


def _reply(answer: Answer, weights: Weights, task: Any, slot: Arena, turn: int) -> tuple[Any, ...]:
    try:
        result, tensors = answer(weights, task)
        return "answer", turn, result, slot.write(tensors)
    except UserError as mistake:
        return "mistake", str(mistake)
    except Exception:
        return "failure", traceback.format_exc()
