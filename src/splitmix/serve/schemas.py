"""What goes in and out, in words that the interface's description shows."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from splitmix.core.errors import UserError


class Ask(BaseModel):
    """How a picture is to be classified."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    width: str | int | float | None = Field(
        None, description="share of the channels, such as 1/2; default: all there is"
    )
    robust: float | None = Field(None, ge=0, le=1, description="robustness: 0 clean norms, 1 noisy norms; default: 0")
    deadline_ms: float | None = Field(None, gt=0, le=60_000, description="add bases in order until this time is over")
    confidence: float | None = Field(
        None, gt=0, lt=1, description="add bases in order until the answer is this settled"
    )
    attack: bool = Field(False, description="also attack the picture, at this dial")
    label: str | int | None = Field(None, description="true class, by name or number; default: the class predicted")

    @field_validator("width", "robust", "deadline_ms", "confidence", "label", mode="before")
    @classmethod
    def _no_truth(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("it should be a number")
        return value


class AskPixels(Ask):
    """A picture as numbers, and how it is to be classified."""

    pixels: Any = Field(..., description="rows of pixels, each of whole numbers from 0 to 255")


class Vote(BaseModel):
    """What one base says by itself."""

    label: str
    probability: float


class Verdict(BaseModel):
    """What the mix of bases says."""

    label: str = Field(description="the most likely class")
    probabilities: list[float] = Field(description="of all classes, in the order of /api/model")
    votes: list[Vote] = Field(description="of every base that was asked; empty with a deadline or a confidence")
    milliseconds: float = Field(description="time in the model, on this machine")


class Attacked(Verdict):
    """What the mix says of the attacked picture."""

    picture: str = Field(description="the attacked picture, 8 bits a colour, as PNG in base64")
    target: str = Field(description="the class that the attack leads away from")
    fooled: bool = Field(description="whether the answer is another class than that")
    attack: str = Field(description="the attack in full")
    attack_milliseconds: float


class Answer(Verdict):
    """The class of a picture, and what it cost to find."""

    width: str = Field(description="the width that answered; narrower than asked if time was short")
    robust: float
    bases: int
    parameters: int
    macs: int = Field(description="multiplications of convolutions and linears")
    attacked: Attacked | None = Field(None, description="the same for the attacked picture, if it was asked for")


class Error(BaseModel):
    """Why there is no answer, in one sentence."""

    error: str


class Wish(BaseModel):
    """What a dial must keep to; what is left out is no limit."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    max_ms: float | None = Field(None, ge=0, description="milliseconds for one picture, measured on this machine")
    max_mb: float | None = Field(None, ge=0, description="megabytes of memory, measured on this machine")
    max_macs: float | None = Field(None, ge=0, description="multiplications")
    min_clean: float | None = Field(None, ge=0, le=1, description="accuracy on pictures as they are")
    min_robust: float | None = Field(None, ge=0, le=1, description="accuracy under attack")
    prefer: Literal["clean", "robust", "latency"] = Field("clean", description="what to be best at within the limits")


class Found(BaseModel):
    """A dial and what it promises: accuracies are the lower ends of what was measured."""

    width: str
    robust: float
    bases: int
    clean: float
    attacked: float | None
    ms: float
    mb: float
    macs: int
    parameters: int


class Planned(BaseModel):
    """The best dial within the limits; if none keeps to them, the nearest."""

    fits: bool = Field(description="whether the dial keeps to all limits")
    option: Found = Field(description="the dial, and what it promises")
    binding: list[str] = Field(description="limits that decided, or that are missed")
    relax: dict[str, float] = Field(description="what the missed limits would have to be")


def read_record(kind: type[BaseModel], given: Any) -> Any:
    """A checked record, or one sentence that names every mistake."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise UserError("; ".join(dict.fromkeys(sentence(mistake) for mistake in error.errors()))) from None


def sentence(mistake: Any) -> str:
    """One mistake that pydantic found, in words."""
    where = [str(part) for part in mistake["loc"] if part not in ("body", "query")]
    name = where[0] if where else "the request"
    if mistake["type"] == "missing":
        return f"{name} is missing"
    if mistake["type"] == "extra_forbidden":
        return f"there is no setting '{name}'; see /docs"
    said = mistake["msg"].removeprefix("Value error, ")
    wanted = said[:1].lower() + said[1:]
    return f"{name} is {str(mistake['input'])[:40]!r}, but {wanted.replace('input should', 'it should')}"
