"""Configs stop here: TOML and `key=value` in, one checked record out, all mistakes reported at once."""

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from splitmix.core.errors import UserError, name_of, shown, unknown
from splitmix.core.files import layers
from splitmix.core.width import parse_width
from splitmix.runs.recipes import RECIPES, apply_recipe, under_attack

MOST_TOML = 100_000  # characters
MOST_DOTS = 100  # in a line: the parser's time goes with the square of a key's parts
DEEPEST = 16  # lists and tables in one another
Value = str | int | float | bool | list[Any] | dict[str, Any]


class Config(BaseModel):
    """Everything that decides a run's result, with its default."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)

    task: str = Field("mini", description="a task's name, or your own data: a folder of pictures, .npz, CSV, Parquet")
    method: str | dict[str, Any] = Field(
        "splitmix", description="a method's name, or {name=..., its own settings}: see splitmix methods"
    )
    net: str | None = Field(None, description="a net's name or 'module:function'; default: the task's own")
    rounds: int = Field(30, ge=1, description="federated rounds")
    lr: float = Field(0.1, gt=0, description="learning rate of the first round")
    seed: int = Field(1, ge=0, description="of all draws: data, initial weights, clients, batches")
    atom: str = Field("1/8", description="width of one base")
    budgets: Value = Field("1/8 1/4 1/2 1", description="a preset, widths for equal groups, or {name=..., order=...}")
    objective: str | dict[str, Any] = Field(
        "plain", description="local loss: plain, masked, adversarial, oat, or {name=..., its own settings}"
    )
    norm: Literal["batch", "post", "tracked", "local"] = Field(
        "post", description="where norm statistics come from; with an attack in the objective the default is tracked"
    )
    statistics: Literal["client", "global", "chosen"] = Field(
        "client",
        description="with norm post, whose count: each client's own, those of all, or the better on validation",
    )
    order: Literal["natural", "validation", "greedy"] = Field("greedy", description="which bases are mixed first")
    mix: Literal["equal", "fitted"] = Field(
        "equal", description="how bases count in a mix: alike, or as fitted on validation images where that is better"
    )
    schedule: Literal["constant", "cosine", "steps"] = Field("cosine", description="learning rate over the rounds")
    floor: float = Field(0.0, ge=0, le=1, description="lowest factor of the cosine schedule")
    milestones: list[int] = Field([150, 250], description="rounds at which the steps schedule divides by ten")
    epochs: int = Field(1, ge=1, description="local epochs")
    batch: int = Field(32, ge=2, description="images in a training batch")
    optimizer: str | dict[str, Any] = Field(
        "sgd", description="local steps: sgd, adam, adamw, or {name=..., its own settings}"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="of the local SGD")
    weight_decay: float = Field(5e-4, ge=0, description="of the local optimizer")
    proximal: float = Field(0.0, ge=0, description="how much of its way each client is drawn back (FedProx); 0: not")
    norm_rate: float = Field(
        1.0, gt=0, description="learning rate of the norms' affines, as a multiple of lr; some 10 opens the dial"
    )
    precision: Literal["full", "mixed"] = Field(
        "full", description="of local training; mixed computes in bfloat16 where that is safe, for GPUs"
    )
    kernels: Literal["torch", "native"] = Field("torch", description="native: digit trains in C, compiled here by cc")
    server: str | dict[str, Any] = Field(
        "mean", description="how the server steps: mean, momentum, adam, or {name=..., its own settings}"
    )
    average: float = Field(0.0, ge=0, le=1, description="share of the rounds, the last, whose mean weights are served")
    cohort: int | None = Field(None, ge=1, description="clients per round; default: all")
    min_share: float = Field(0.5, ge=0, le=1, description="of a round's clients must answer, else it is repeated")
    repeats: int = Field(2, ge=0, description="of one round, before the run is given up")
    min_updates: int = Field(1, ge=1, description="a base that gets fewer in a round keeps its value")
    clip: float = Field(
        0.0, ge=0, description="updates that go so many times as far as usual are shortened; 0: never; on Flower: 2"
    )
    aggregate: Literal["mean", "trimmed", "median"] = Field(
        "mean", description="of the updates of a base; trimmed and median leave out what few send"
    )
    max_samples: int | str | None = Field(
        None,
        description="clients that register more are not asked: a number, 10x: of the median, or any; on Flower: 10x",
    )
    privacy: dict[str, Any] | None = Field(
        None, description="{clip=1.0, noise=1.0, delta=1e-5}: bounded updates, noise over them; default: none"
    )
    clients: int | None = Field(None, ge=1, description="number of clients; default: the task's own")
    partition: Value | None = Field(
        None, description="domain, iid, {name='classes', k=3}, {name='dirichlet', alpha=.5}"
    )
    val_ratio: float | None = Field(None, gt=0, lt=1, description="share of a client's images held out for validation")
    data: dict[str, Any] | None = Field(
        None, description='how your own data is read: {size=64}, {label="species", without=["id"]}, {kind="tokens"} ...'
    )
    rescale_init: bool = Field(True, description="start narrow nets like a slice of the full one")
    rescale_layers: bool | Literal["released"] = Field(
        True, description="divide layer outputs by the width before each norm; released: in training only"
    )
    eval_every: int = Field(10, ge=1, description="rounds between validations; the best round is kept")
    eval_batch: int = Field(128, ge=2, description="images in a batch when scoring and calibrating")
    checkpoint_every: int = Field(5, ge=1, description="rounds between checkpoints")

    @field_validator("atom", mode="before")
    @classmethod
    def _atom(cls, value: Any) -> str:
        width = parse_width(value)
        if width.numerator != 1:
            raise ValueError(f"the atom must be one over a whole number, such as 1/8, not {value}")
        return str(width)

    @field_validator("max_samples")
    @classmethod
    def _max_samples(cls, value: int | str | None) -> int | str | None:
        if value is None or value == "any":
            return None
        if re.fullmatch(r"[1-9][0-9]{0,8}x?", str(value)) is None:
            raise ValueError(f"{str(value)[:20]} is no number of samples; give one, a multiple such as 10x, or any")
        return value if str(value).endswith("x") else int(value)

    @field_validator(
        "task", "data", "method", "net", "objective", "optimizer", "server", "privacy", "budgets", "partition"
    )
    @classmethod
    def _known(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.field_name not in (info.context or {}).get("own", ()):
            _check_name(str(info.field_name), value)
        return value

    def __repr__(self) -> str:
        """The settings that are no defaults."""
        fields = type(self).model_fields
        other = {key: value for key, value in self if value != fields[key].get_default()}
        return f"Config({', '.join(f'{key}={value!r}' for key, value in other.items())})"

    @property
    def method_name(self) -> str:
        return name_of(self.method)

    def digest(self) -> str:
        """A hash of all that decides the result; how often it is checkpointed does not."""
        return self._digest(BEFORE)

    def digests(self) -> tuple[str, ...]:
        """This hash, and others under which files of a run with these settings may be stored."""
        return tuple(dict.fromkeys(self._digest(BEFORE | once) for once in ({}, *MISTAKEN)))

    def _digest(self, left_out: Mapping[str, object]) -> str:
        deciding = self.model_dump(mode="json", exclude=FREE)
        hashed = {key: value for key, value in deciding.items() if key not in left_out or left_out[key] != value}
        return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()


FREE = {"checkpoint_every", "min_share", "repeats"}  # how a run is kept going: may change when it is resumed
# What runs did before these keys existed: a hash leaves out a key that says just that, so that it is theirs as well.
# These values are no defaults, and never change: with another default the key is hashed like any other.
BEFORE: dict[str, object] = {
    "min_updates": 1,
    "clip": 0.0,
    "max_samples": None,
    "precision": "full",
    "kernels": "torch",
    "server": "mean",
    "average": 0.0,
    "norm_rate": 1.0,
    "optimizer": "sgd",
    "proximal": 0.0,
    "statistics": "client",
    "aggregate": "mean",
    "mix": "equal",
    "privacy": None,
    "data": None,
}
MISTAKEN: tuple[dict[str, object], ...] = ({"clip": 5.0},)  # left out instead for half a day in November 2026
# settings in which a task differs from the defaults above
_CIFAR10 = {"rounds": 400, "epochs": 5, "batch": 128, "schedule": "steps", "objective": "masked"}
_PICTURES = ("domainnet", "domainnet-256", "office-caltech10", "office-caltech10-256", "pacs", "pacs-256")
TASK_DEFAULTS: dict[str, dict[str, object]] = {
    "digits": {"rounds": 300},
    **dict.fromkeys(("cifar10", "cifar10-half", "cifar10-small"), _CIFAR10),
    **{task: {"rounds": 400} for task in _PICTURES},
}


def read_config(source: str | None, overrides: Sequence[str] = ()) -> Config:
    """The config from a TOML file or a task's name, changed by `key=value` overrides."""
    return make_config(read_settings(source, overrides))


def read_settings(source: str | None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What the user set, not yet checked: the keys of a TOML file or a task's name, and `key=value` overrides."""
    given: dict[str, Any] = {}
    if source is not None and source.endswith(".toml"):
        given = read_toml(Path(source))
    elif source is not None:
        given = {"task": source}
    for text in overrides:
        key, value = parse_override(text)
        given[key] = value
    return given


def make_config(given: Mapping[str, object], *, own: Collection[str] = ()) -> Config:
    """A checked config; every mistake is named in one error. Keys in `own` name things of the user's, in no table."""
    task = given.get("task", "mini")
    usual = TASK_DEFAULTS.get(task if isinstance(task, str) else "", {})
    if under_attack(given):
        usual = {"norm": "tracked", **usual}  # the paper's, and what a dial can use
    merged = {**usual, **apply_recipe(given)}
    try:
        return Config.model_validate(merged, context={"own": own})
    except ValidationError as error:
        by_key = groupby(error.errors(), key=lambda mistake: str((*mistake["loc"], "settings")[0]))
        raise UserError("; ".join(_sentence(key, next(mistakes)) for key, mistakes in by_key)) from None


def read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return _bounded_toml(file.read(MOST_TOML + 1).decode())
    except FileNotFoundError:
        raise UserError(f"there is no config file '{path}'") from None
    except (ValueError, OSError) as error:
        raise UserError(f"the config file '{path}' cannot be read: {error}") from None


def _bounded_toml(text: str) -> dict[str, Any]:
    """What TOML says, or a ValueError; refused are texts that would take the parser long, or be too deep to handle."""
    if len(text) > MOST_TOML or any(line.count(".") > MOST_DOTS for line in text.split("\n")):
        raise ValueError(f"it has more than {MOST_TOML:,} characters, or a line of more than {MOST_DOTS} dots")
    try:
        said = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # of Python: a number of thousands of digits
        raise ValueError("it has a number of far too many digits") from None
    if any(depth > DEEPEST for depth, _ in enumerate(layers(said))):
        raise ValueError("it is nested too deeply")
    return said


def parse_override(text: str) -> tuple[str, Any]:
    """Read `key=value`; a value that is no TOML is a plain string.

    >>> parse_override("rounds=12"), parse_override("budgets=1/8 1")
    (('rounds', 12), ('budgets', '1/8 1'))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"{shown(text)} is not a setting; write key=value, such as rounds=12")
    if len(text.splitlines()) > 1:
        raise UserError(f"{shown(text)} has more than one line; give each key=value its own -o")
    try:
        return key.strip(), _bounded_toml(f"value = {value}")["value"]
    except ValueError as error:
        if not isinstance(error, tomllib.TOMLDecodeError):
            raise UserError(f"{shown(text)} cannot be read: {error}") from None
        if value.strip().startswith("{"):
            given, example = shown(text.strip(), most=200), "'objective={name=\"adversarial\", weight=0.5}'"
            raise UserError(
                f"{given} is not TOML; write text in quotes and 0.5 with its zero, and in a shell single quotes around "
                f"all of it, such as {example}"
            ) from None
        return key.strip(), value.strip()


def to_toml(config: Config) -> str:
    """The resolved config as TOML, one key a line."""
    return "".join(f"{key} = {_toml(value)}\n" for key, value in config.model_dump().items() if value is not None)


def check_same_config(path: Path, text: str) -> None:
    """A run is resumed with the very settings it was begun with."""
    stored = (path / "config.toml").read_bytes().decode(errors="replace")
    was, now = (dict(line.partition(" = ")[::2] for line in lines.splitlines()) for lines in (stored, text))
    was = {key: json.dumps(value) for key, value in BEFORE.items() if value is not None} | was
    other = [key for key in was | now if was.get(key) != now.get(key) and key not in FREE]
    if other:
        told = ", ".join(f"{key} = {was.get(key, 'none')} (now {now.get(key, 'none')})" for key in other)
        raise UserError(
            f"the run in '{path}' was begun with other settings: {told}; give its own to resume it, or another --out"
        )


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str | int | float):  # written alike in JSON, but TOML knows no surrogates
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    raise UserError(f"{value!r} is no setting; give text, numbers, true or false")


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def _check_name(key: str, value: Any) -> None:
    """Refuse what is in no table; the tables are imported here, as PyTorch takes its time."""
    from splitmix.data.budgets import parse_law
    from splitmix.data.partition import parse_partition
    from splitmix.data.reading import parse_reading
    from splitmix.data.tasks import check_task
    from splitmix.methods import METHODS
    from splitmix.methods.optimizers import find_optimizer, find_server
    from splitmix.methods.privacy import find_privacy
    from splitmix.nets import find_net
    from splitmix.objectives import find_objective

    checks: dict[str, Callable[[Any], object]] = {
        **{"task": check_task, "data": parse_reading, "net": find_net, "partition": parse_partition},
        **{"objective": find_objective, "optimizer": find_optimizer, "server": find_server, "privacy": find_privacy},
    }
    if key in checks:
        checks[key](value)
    elif key == "budgets":
        whom = ("order", "redraw", "seed")
        parse_law({k: v for k, v in value.items() if k not in whom} if isinstance(value, dict) else value)
    else:
        if name_of(value) not in METHODS:
            raise unknown(key, name_of(value), METHODS)


def _sentence(key: str, mistake: Any) -> str:
    if key == "recipe":  # a known one has been applied, and is gone
        return str(unknown(key, str(mistake["input"]), RECIPES))
    if mistake["type"] == "extra_forbidden":
        near = get_close_matches(key[:60], [*Config.model_fields, "recipe"], n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(Config.model_fields)}"
        return f"unknown key {shown(key)}; {hint}"
    said = str(mistake["msg"])
    if mistake["type"] == "literal_error":
        return str(unknown(key, str(mistake["input"]), get_args(Config.model_fields[key].annotation)))
    if mistake["type"] == "value_error":
        return f"{key}: {said.removeprefix('Value error, ')}"
    return f"{key}: {said[0].lower()}{said[1:]} (given: {shown(mistake['input'])})"
