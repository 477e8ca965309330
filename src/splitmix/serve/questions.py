"""What is asked and answered, in words that the interface's description shows, and how a question is read."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from fastapi import Request
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import from_json
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from splitmix.core.errors import UserError, shown
from splitmix.core.inputs.pictures import Pixels, picture_from_file
from splitmix.runtime.images import picture_from_pixels
from splitmix.runtime.manifest import CostRecord, TableRecord
from splitmix.runtime.model import Model
from splitmix.runtime.plan import DialOption
from splitmix.serve.pixels import lift_pixels

Asked = TypeVar("Asked", bound=BaseModel)
MOST_SETTINGS = 20
LARGEST = 1e30  # of numbers: what is to be multiplied must stay finite
logging.getLogger("python_multipart").addHandler(logging.NullHandler())  # strangers' forms do not fill our output


class PictureQuestion(BaseModel):
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


class PixelQuestion(PictureQuestion):
    """A picture as numbers, and how it is to be classified."""

    pixels: Any = Field(..., description="rows of pixels, each of whole numbers from 0 to 255")


class NumberQuestion(PictureQuestion):
    """A sample of another kind than a picture (see /api/model), and how it is to be classified."""

    numbers: Any = Field(..., description="a row of features, or lists of numbers in the shape of a sample")


class Vote(BaseModel):
    """What one base says by itself."""

    label: str
    probability: float


class Verdict(BaseModel):
    """What the mix of bases says."""

    label: str = Field(description="the most likely class")
    probabilities: list[float] = Field(description="of all classes, in the order of /api/model")
    votes: list[Vote] = Field(description="of every base that was asked; empty with a deadline or a confidence")
    milliseconds: float = Field(description="time in the model, on this machine, with those that were answered at once")


class Attacked(Verdict):
    """What the mix says of the attacked picture."""

    picture: str = Field(description="the attacked picture, 8 bits a colour, as PNG in base64")
    target: str = Field(description="the class that the attack leads away from")
    fooled: bool = Field(description="whether the answer was that class before, and is another now")
    attack: str = Field(description="the attack in full")
    attack_milliseconds: float


class PictureAnswer(Verdict):
    """The class of a picture, and what it cost to find."""

    width: str = Field(description="the width that answered; narrower than asked if time was short")
    robust: float
    bases: int
    parameters: int
    macs: int = Field(description="multiplications of convolutions and linears")
    attacked: Attacked | None = Field(None, description="the same for the attacked picture, if it was asked for")


class Refusal(BaseModel):
    """Why there is no answer, in one sentence."""

    error: str


class ModelFacts(BaseModel):
    """What a client must know before it asks: from the manifest, for the bases that have arrived."""

    net: str
    task: str | None
    storage: str
    classes: list[str] = Field(description="their names, in the order of the probabilities")
    sample: str = Field(description="what it takes: image, features, signal or tokens")
    image: list[int] = Field(
        description="height, width and channels of the pictures it takes, or the shape of a sample"
    )
    columns: list[str] = Field(description="names of the features, where they have any")
    atom: str = Field(description="the width of one base")
    bases: int = Field(description="of the whole bundle, whatever has arrived of it")
    widths: list[str] = Field(description="that can be asked for now")
    dual: bool = Field(description="whether it has a robustness dial")
    costs: list[CostRecord] = Field(description="of every width")
    table: TableRecord = Field(description="measured accuracies")
    version: str
    name: str
    attack: str | None = Field(description="the attack that visitors may ask for, in full")


class Health(BaseModel):
    """That it serves, and since when."""

    status: str
    widths: list[str]
    seconds: float = Field(description="since it was started")


class PlanQuestion(BaseModel):
    """What a dial must keep to; what is left out is no limit."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    max_ms: float | None = Field(None, ge=0, description="milliseconds for one picture, measured on this machine")
    max_mb: float | None = Field(None, ge=0, description="megabytes of memory, measured on this machine")
    max_macs: float | None = Field(None, ge=0, description="multiplications")
    min_clean: float | None = Field(None, ge=0, le=1, description="accuracy on pictures as they are")
    min_robust: float | None = Field(None, ge=0, le=1, description="accuracy under attack")
    prefer: Literal["clean", "robust", "latency"] = Field("clean", description="what to be best at within the limits")


class PlanAnswer(BaseModel):
    """The best dial within the limits; if none keeps to them, the nearest."""

    fits: bool = Field(description="whether the dial keeps to all limits")
    option: DialOption = Field(description="the dial, and what it promises")
    binding: list[str] = Field(description="limits that decided, or that are missed")
    relax: dict[str, float] = Field(description="what the missed limits would have to be")


async def read_question(
    request: Request, model: Model, most_pixels: int
) -> tuple[PictureQuestion, NDArray[Any] | Callable[[], Pixels]]:
    """How to classify, and the sample; a picture in a file is yet to be decoded, which takes a moment."""
    shape = model.image
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" and model.manifest.sample != "image":
        about = checked(NumberQuestion, read_json(await request.body()))
        return about, numbers_in(about.numbers, shape)
    if kind == "application/json":
        rest, pixels = lift_pixels(await request.body(), shape)
        ask = checked(PixelQuestion, read_json(rest))
        return ask, picture_from_pixels(ask.pixels, shape) if pixels is None or ask.pixels is not None else pixels
    if model.manifest.sample != "image":
        raise HTTPException(415, f"this model takes {model.manifest.sample}, not pictures; send numbers in JSON")
    if kind != "multipart/form-data":
        raise HTTPException(415, f"a body of type {shown(kind)} was sent; send application/json or multipart/form-data")
    fields, data = await read_form(request)
    settings = {key: value if value != "" else None for key, value in fields.items()}
    return checked(PictureQuestion, settings), lambda: picture_from_file(data, shape, most=most_pixels)


def numbers_in(value: Any, shape: Sequence[int]) -> NDArray[Any]:
    """Lists of numbers in the shape of a sample.

    >>> numbers_in([1, 2.5], (2,)).tolist()
    [1.0, 2.5]
    """
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in "iuf" or array.shape != tuple(shape):
        raise UserError(f"the numbers are not {' x '.join(map(str, shape))} plain numbers; see /api/model")
    if np.abs(array.astype(np.float64)).max(initial=0) > LARGEST:
        raise UserError(f"there are numbers beyond {LARGEST:g}, which the model cannot take; scale them")
    return array


async def read_form(request: Request) -> tuple[dict[str, Any], bytes]:
    """The fields of a form, and the file called image in it."""
    try:
        async with request.form(max_files=1, max_fields=10, max_part_size=1000) as form:
            fields = dict(form)
            image = fields.pop("image", None)
            data = await image.read() if isinstance(image, UploadFile) else None
    except ValueError as error:  # whatever the parser stumbles over, down to alphabets that cannot be
        raise HTTPException(400, f"the form cannot be read ({shown(error)}); send multipart/form-data") from None
    if data is None:
        raise UserError("the form has no file called 'image'")
    return fields, data


def read_json(body: bytes) -> Any:
    """A body as JSON without NaN; what is no JSON, or nested without end, is refused."""
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise HTTPException(400, f"the body is no JSON: {str(error)[:100]}") from None


def checked(kind: type[Asked], given: Any) -> Asked:
    """A checked record, or one sentence that names the mistakes."""
    if isinstance(given, dict) and len(given) > MOST_SETTINGS:
        raise UserError(f"{len(given)} settings were sent; there are not so many, see /docs")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise UserError(sentences(error.errors())) from None


def body_of(kind: type[BaseModel], *, form: bool = False) -> dict[str, object]:
    """A body that we read ourselves, in the words of OpenAPI: its schema as JSON, and as a form with a picture."""
    content = {"application/json": {"schema": kind.model_json_schema()}}
    if form:
        schema = PictureQuestion.model_json_schema()
        file = {"type": "string", "format": "binary", "description": "a file (in a form)"}
        schema |= {"properties": {"image": file, **schema["properties"]}, "required": ["image"]}
        content["multipart/form-data"] = {"schema": schema}
    return {"requestBody": {"required": True, "content": content}}


def sentences(mistakes: Sequence[Any]) -> str:
    """What pydantic found, in words: the first mistakes, and how many more there are."""
    said = "; ".join(dict.fromkeys(map(_sentence, mistakes[:3])))
    return said if len(mistakes) <= 3 else f"{said}; and {len(mistakes) - 3} more mistakes"


def _sentence(mistake: Any) -> str:
    where = [str(part) for part in mistake["loc"] if part not in ("body", "query")]
    name = where[0] if where else "the request"
    if mistake["type"] == "missing":
        return f"{name} is missing"
    if mistake["type"] == "extra_forbidden":
        return f"there is no setting {shown(name)}; see /docs"
    said = mistake["msg"].removeprefix("Value error, ")
    wanted = said[:1].lower() + said[1:]
    return f"{name} is {shown(mistake['input'])}, but {wanted.replace('input should', 'it should')}"
