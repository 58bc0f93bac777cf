"""What requests say: the fields of their bodies, and JSON, msgpack and forms as these."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from woh_faiss.errors import InputError, short
from woh_faiss.index.neighbours import By

from .service import How, Queries

Model = TypeVar("Model", bound="Body")
Id = Annotated[int, Field(ge=0, lt=2**63)]
Cell = int | float | str | bool | None

JSON, MSGPACK, FORM = "application/json", "application/msgpack", "multipart/form-data"
#: What clients call msgpack.
_MSGPACK = (MSGPACK, "application/x-msgpack", "application/vnd.msgpack")
#: Files that a form may have beside its fields.
PICTURES = "image"


class Body(BaseModel):
    """Fields that several bodies have."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    vectors: list[list[float]] | None = Field(
        None, description="Rows of features, (n, d); in msgpack also the bytes of little-endian float32."
    )

    def rows(self, packed: bytes | None, d: Callable[[], int]) -> Any:
        """The vectors, (n, d), which may have come as bytes."""
        return self.vectors if packed is None else unpacked(packed, d())


class SearchBody(Body):
    """One or several queries, each of one kind, and how they are answered."""

    ids: list[Id] | None = Field(None, description="Ids of items: what is like them.")
    keys: list[str] | None = Field(None, description="Keys of items: what is like them.")
    tags: list[list[str]] | None = Field(None, description="A list of tags a query.")
    texts: list[str] | None = Field(None, description="Texts, by the encoder or else by words as tags.")
    k: int = Field(10, ge=1, description="Answers a query.")
    offset: int = Field(0, ge=0, description="Answers that are passed over.")
    by: By = Field("both", description="What answers are ordered by.")
    where: str | None = Field(None, description="A filter, such as \"price < 20 and 'beach' in tags\".")
    expand: int = Field(3, ge=0, description="First answers that are asked with again.")
    ann: Literal["ivf"] | None = Field(None, description="Look at a part of the codes only.")
    refine: bool = Field(False, description="Order by the original features that the server has.")
    refine_k: int | None = Field(None, ge=1, description="How many answers `refine` orders.")
    explain: bool = Field(False, description="Answer with `kind` and `instance`, the terms of the score.")
    describe: bool = Field(True, description="Answer with keys, tags and metadata, not with ids alone.")

    def queries(self, vectors: Any = None, images: list[bytes] | None = None) -> Queries:
        """What is asked with."""
        names = ("ids", "keys", "tags", "texts")
        return Queries(
            vectors=self.vectors if vectors is None else vectors,
            images=images,
            **{name: getattr(self, name) for name in names},
        )

    def how(self) -> How:
        """How it is answered."""
        return How(**{each.name: getattr(self, each.name) for each in dataclasses.fields(How)})


class ItemsBody(Body):
    """Items to add: features and, for each of them, what is known of it."""

    texts: list[str] | None = Field(None, description="Texts in place of vectors, for the encoder.")
    ids: list[Id] | None = Field(None, description="An id an item; without them the next ones.")
    keys: list[str] | None = Field(None, description="A key an item.")
    tags: list[list[str]] | None = Field(None, description="A list of tags an item.")
    metadata: dict[str, list[Cell]] | None = Field(
        None, description="Columns by name, a value an item; dates and times as ISO 8601 text."
    )
    on_duplicate: Literal["error", "skip", "replace"] = Field(
        "error", description="What to do with items whose id or key another one has."
    )


def media_of(content_type: str) -> str:
    """JSON, MSGPACK or FORM; HTTPException for what is none of them."""
    media = content_type.partition(";")[0].strip().lower()
    if media in _MSGPACK:
        return MSGPACK
    if media in ("", JSON):
        return JSON
    if media == FORM:
        return FORM
    raise HTTPException(415, f"the content type is {short(media)}, expected one of {JSON}, {MSGPACK}, {FORM}")


def parsed(model: type[Model], body: bytes, media: str) -> tuple[Model, bytes | None]:
    """The fields of a body, and its vectors as bytes where they came so.

    Raises
    ------
    ValidationError
        A field is missing, unknown or of another type.
    InputError
        The body is no msgpack.
    """
    if media != MSGPACK:
        return model.model_validate_json(body), None
    import msgpack

    try:
        found = msgpack.unpackb(body)
    except Exception as error:  # its errors have no common class
        raise InputError(f"the body is no msgpack ({type(error).__name__})") from None
    packed = None
    if isinstance(found, dict) and isinstance(found.get("vectors"), bytes):
        packed = found.pop("vectors")
    return model.model_validate(found), packed


def form_fields(form: Any) -> tuple[SearchBody, list[bytes]]:
    """A search by pictures: the fields of a form, and its files; tags stand beside each picture."""
    fields: dict[str, Any] = {}
    pictures: list[bytes] = []
    tags: list[str] = []
    for name, value in form.multi_items():
        if not isinstance(value, str):
            if name != PICTURES:
                raise InputError(f"the form has a file {short(name)}, expected pictures as {PICTURES!r}")
            pictures.append(value.file.read())
        elif name == "tags":
            tags.append(value)
        elif name in fields:
            raise InputError(f"the form has {short(name)} twice; give it once")
        else:
            fields[name] = value
    if tags:
        fields["tags"] = [tags] * max(1, len(pictures))
    return SearchBody.model_validate(fields), pictures


def unpacked(packed: bytes, d: int) -> NDArray[np.float32]:
    """Bytes of little-endian float32 as rows of d numbers; InputError if they are no whole rows."""
    if not packed or len(packed) % (4 * d):
        raise InputError(
            f"vectors have {len(packed)} bytes, expected rows of {d} float32, {4 * d} bytes each"
        )
    return np.frombuffer(packed, "<f4").reshape(-1, d).astype(np.float32, copy=False)


def body_of(model: type[BaseModel], *, form: bool = False) -> dict[str, Any]:
    """What OpenAPI says of a body that a route reads itself."""
    schema = model.model_json_schema()
    content: dict[str, Any] = {media: {"schema": schema} for media in (JSON, MSGPACK)}
    if form:
        fields = {
            name: each
            for name, each in schema["properties"].items()
            if name not in ("vectors", "ids", "keys", "texts", "tags")
        }
        files = {"type": "array", "items": {"type": "string", "format": "binary"}}
        fields |= {PICTURES: files, "tags": {"type": "array", "items": {"type": "string"}}}
        form_schema = {"type": "object", "properties": fields, "required": [PICTURES]}
        content[FORM] = {"schema": {**form_schema, "additionalProperties": False}}
    return {"requestBody": {"required": True, "content": content}}
