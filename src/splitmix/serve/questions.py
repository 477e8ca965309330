"""Reading a question: JSON with pixels, or a form with a file; anything else is one sentence and a status."""

from collections.abc import Callable
from typing import Any

from fastapi import Request
from pydantic_core import from_json
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from splitmix.core.errors import UserError
from splitmix.runtime.pictures import Pixels, from_file, from_pixels
from splitmix.serve.schemas import Ask, AskPixels, read_record

Decode = Callable[[tuple[int, ...]], Pixels]  # the shape of the model's images -> the picture; takes a moment


async def read_question(request: Request, most_pixels: int) -> tuple[Ask, Decode]:
    """How to classify, and how to get at the picture."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        ask: AskPixels = read_record(AskPixels, await read_json(request))
        return ask, lambda shape: from_pixels(ask.pixels, shape)
    if kind != "multipart/form-data":
        raise HTTPException(415, f"a body of type '{kind[:40]}' was sent; send application/json or multipart/form-data")
    async with request.form(max_files=1, max_fields=10, max_part_size=1000) as form:
        fields = dict(form)
        image = fields.pop("image", None)
        if not isinstance(image, UploadFile):
            raise UserError("the form has no file called 'image'")
        data = await image.read()
    settings = {key: value if value != "" else None for key, value in fields.items()}
    return read_record(Ask, settings), lambda shape: from_file(data, shape, most=most_pixels)


async def read_json(request: Request) -> Any:
    """The body as JSON without NaN; what is no JSON, or nested without end, is refused."""
    try:
        return from_json(await request.body(), allow_inf_nan=False)
    except ValueError as error:
        raise HTTPException(400, f"the body is no JSON: {str(error)[:100]}") from None


def bodies(**kinds: dict[str, Any]) -> dict[str, Any]:
    """A body that we read ourselves, in the words of OpenAPI: its schema as JSON, and as a form if it may be one."""
    names = {"json": "application/json", "form": "multipart/form-data"}
    content = {names[kind]: {"schema": schema} for kind, schema in kinds.items()}
    return {"requestBody": {"required": True, "content": content}}


def form_schema() -> dict[str, Any]:
    """A question whose picture is a file."""
    schema = Ask.model_json_schema()
    file = {"type": "string", "format": "binary", "description": "a file (in a form)"}
    return {**schema, "properties": {"image": file, **schema["properties"]}, "required": ["image"]}
