"""Options of commands that take pictures or texts, and what they open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .answers import QueryBatch
from .options import bar, noted

if TYPE_CHECKING:
    from woh_faiss import WOHIndex
    from woh_faiss.encoders import Encoder, EncoderRecord
    from woh_faiss.inputs import PictureOptions

#: What makes features of pictures and texts.
encoder_option = click.option(
    "--encoder",
    "encoder_name",
    metavar="NAME",
    help="What makes features of pictures and texts: onnx:MODEL or FOLDER, st:NAME (sentence-transformers), "
    "open-clip:MODEL/PRETRAINED, or module:factory (Python, which is run).",
)

tags_from_option = click.option(
    "--tags-from",
    metavar="WHERE",
    help="Tags of pictures: a file of paths and tags, sidecars (.txt or .json beside each), folders (their "
    "names), or keywords (IPTC and XMP in the pictures).",
)

workers_option = click.option(
    "--workers",
    type=click.IntRange(min=1, max=256),
    default=1,
    show_default=True,
    help="Processes that encode pictures.",
)


@dataclass(frozen=True)
class PictureFlags:
    """What a command was told of pictures among its inputs."""

    encoder_name: str | None
    tags_from: str | None
    workers: int
    features: Path | None

    def options(
        self, chunk_size: int | None, index: WOHIndex | None = None, skip: bool = False
    ) -> PictureOptions | None:
        """How `open_inputs` encodes pictures; None where no encoder was given, and `index` remembers none.

        With `skip` pictures whose key is in the index are left out.

        Raises
        ------
        InputError
            The encoder cannot be opened, or is not that of the index.
        """
        from woh_faiss.inputs import PictureOptions

        if self.encoder_name is None and (index is None or index.encoder is None):
            return None
        return PictureOptions(
            encoder=lambda: encoder_of(self.encoder_name, index),
            tags_from=self.tags_from,
            folder=self.features,
            workers=self.workers,
            known=index.store.view.known_keys if skip and index is not None else None,
            note=noted,
            bar=item_bar,
            **({} if chunk_size is None else {"chunk_size": chunk_size}),
        )

    def record(self) -> EncoderRecord:
        """What is kept of the encoder that was given."""
        from woh_faiss.encoders import EncoderRecord

        return EncoderRecord.of(encoder_of(self.encoder_name))


def picture_options(command: Callable[..., None]) -> Callable[..., None]:
    """What a command that takes pictures among its inputs is told, gathered into one argument: pictures."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        names = ("encoder_name", "tags_from", "workers", "features")
        command(*args, pictures=PictureFlags(*(kwargs.pop(name) for name in names)), **kwargs)

    kept = click.option(
        "--features",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="FOLDER",
        help="Keep the features of pictures here, as embed writes them; an interrupted command then goes on.",
    )
    for option in (kept, workers_option, tags_from_option, encoder_option):
        run = option(run)
    return run


def encoder_of(name: str | None, index: WOHIndex | None = None, side: str | None = None) -> Encoder:
    """The encoder of this name, else the one that the index remembers; a note tells what it guesses.

    `side` as of `open_encoder`.

    Raises
    ------
    InputError
        It cannot be opened, is not that of the index, or nobody says which it is.
    """
    from woh_faiss.encoders import EncoderRecord, open_encoder
    from woh_faiss.encoders.open_encoder import open_remembered
    from woh_faiss.errors import InputError

    if name is not None:
        known = index is not None and index.encoder is not None  # what it guesses was told when it was built
        encoder = open_encoder(name, side=side, note=None if known else noted)
        if index is not None:
            index.check_encoder(EncoderRecord.of(encoder), "--encoder")
        return encoder
    if index is None or index.encoder is None:
        where = "" if index is None else f"{index.path} does not say what made its features; "
        raise InputError(f"{where}--encoder NAME says what makes features of pictures and texts")
    return open_remembered(index.encoder, where=str(index.path), side=side)


@contextmanager
def item_bar(total: int, what: str) -> Iterator[Callable[[int, int], object]]:
    """A bar whose pieces are items: called with how many are done, and how many of them are new."""
    with bar(total, what) as step:

        def items(done: int, new: int) -> None:
            for place in range(done):
                step(1 if place < new else 0)

        yield items


@dataclass(frozen=True)
class Questions:
    """Pictures and texts that are asked with.

    Attributes
    ----------
    batches : list of QueryBatch
        Pictures, then texts, each alone.
    words : list of str
        Those of texts that are asked as tags.
    """

    batches: list[QueryBatch]
    words: list[str]

    @classmethod
    def of(
        cls,
        images: Sequence[Path],
        texts: Sequence[str],
        encoder_name: str | None,
        index: WOHIndex,
        words: Sequence[str] | None,
    ) -> Questions:
        """Queries by pictures and texts, each with `words` as tags beside it; notes say how texts are asked.

        Raises
        ------
        InputError
            A picture cannot be read, a text is empty, or the encoder cannot be opened or used.
        """
        from woh_faiss import Chunk
        from woh_faiss.encoders.encoder import IMAGES, TEXTS

        known = encoder_name is not None or index.encoder is not None
        side = IMAGES if images else TEXTS
        encoder = encoder_of(encoder_name, index, side) if images or known else None
        beside = None if words is None else [*words]

        def batch(features: Any, name: str) -> QueryBatch:
            return QueryBatch(Chunk.of(features, keys=[name]), words=beside)

        batches = [batch(encoder.embed_images([path]), str(path)) for path in images if encoder is not None]
        if encoder is not None and TEXTS in encoder.sides:
            if texts:
                noted(f"--text by the encoder {encoder.name}")
            return cls(batches + [batch(encoder.embed_texts([text]), text) for text in texts], [])
        from woh_faiss.tags.tag_text import words as words_of

        asked = {text: words_of(text) for text in texts}
        if texts:
            why = "no encoder is known" if encoder is None else f"the encoder {encoder.name} takes no texts"
            noted(f"--text by its words as tags: {why}")
        batches += [QueryBatch(words=[*asked[text], *(beside or [])], text=text) for text in texts]
        return cls(batches, [word for found in asked.values() for word in found])
