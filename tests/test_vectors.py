import gzip
import pickle
import shutil
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from woh_faiss.errors import InputError
from woh_faiss.vectors import WordVectors

WORDS = ["the", "New_York", "wi-fi", "café", "USA", "12", "Paris"]
V = np.random.default_rng(5).normal(size=(len(WORDS), 4)).astype(np.float32)
EXTENSIONS = [
    "words.txt",
    "words.bin",
    "words.gz",
    "words.kv",
    "words.vec",
    "words",
    "words.bz2",
    "words.npy",
]


def rows(words=WORDS, vectors=V, end="\n"):
    lines = (
        f"{word} {' '.join(repr(float(x)) for x in vector)}"
        for word, vector in zip(words, vectors, strict=True)
    )
    return "".join(line + end for line in lines).encode()


def word2vec_text():
    return b"7 4\n" + rows()


def word2vec_binary(newline=b"\n"):
    return b"7 4\n" + b"".join(
        w.encode() + b" " + v.tobytes() + newline for w, v in zip(WORDS, V, strict=True)
    )


FORMATS = {
    "word2vec text": word2vec_text(),
    "word2vec binary": word2vec_binary(),
    "word2vec binary as gensim writes it": word2vec_binary(b""),
    "GloVe": rows(),
    "fastText .vec": b"7 4\n" + rows(end=" \n"),
    "Windows text": word2vec_text().replace(b"\n", b"\r\n"),
    "no last newline": word2vec_text()[:-1],
    "empty lines at the end": rows() + b"\n\n",
}
FORMATS |= {f"{name}, gzipped": gzip.compress(content) for name, content in FORMATS.items()}


def vectors_of(opened):
    """Everything a file gave, by word."""
    return {word: opened._vectors[at] for word, at in opened._index.items()}


@pytest.fixture
def write(tmp_path):
    def write(content, name="words.txt"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def fault(path, **options):
    """The one line that refuses `path`, which it names."""
    with pytest.raises(InputError) as caught:
        WordVectors.open(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@pytest.mark.parametrize("name", EXTENSIONS)
@pytest.mark.parametrize("content", FORMATS.values(), ids=FORMATS)
def test_a_format_is_told_by_its_content_whatever_the_extension(write, content, name):
    opened = WordVectors.open(write(content, name))
    assert (opened.f, len(opened)) == (4, 7)
    assert list(vectors_of(opened)) == WORDS
    assert_array_equal(np.array(list(vectors_of(opened).values())), V)


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
@pytest.mark.parametrize("content", FORMATS.values(), ids=FORMATS)
def test_limit_reads_the_first_words(write, content, limit):
    opened = WordVectors.open(write(content), limit=limit)
    assert list(vectors_of(opened)) == WORDS[:limit]
    assert_array_equal(opened.lookup("the"), V[0])


def test_limit_does_not_look_behind_itself(write):
    assert len(WordVectors.open(write(b"7 4\n" + rows()[:-40]), limit=3)) == 3
    assert len(WordVectors.open(write(word2vec_binary()[:-40]), limit=3)) == 3
    assert "header says 7 words, the file has 3" in fault(write(b"7 4\n" + rows(WORDS[:3], V[:3])), limit=5)


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1),
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3),
        min_size=1,
        max_size=8,
    )
)
def test_binary_text_and_glove_give_the_same(tmp_path_factory, words):
    folder = tmp_path_factory.mktemp("same")
    matrix = np.array(list(words.values()), np.float32)
    header = f"{len(words)} 3\n".encode()
    (folder / "text").write_bytes(header + rows(words, matrix))
    (folder / "glove").write_bytes(rows(words, matrix))
    (folder / "binary").write_bytes(
        header + b"".join(w.encode() + b" " + v.tobytes() for w, v in zip(words, matrix, strict=True))
    )
    for name in ("text", "glove", "binary"):
        opened = vectors_of(WordVectors.open(folder / name))
        assert list(opened) == list(words)
        assert_array_equal(np.array(list(opened.values())), matrix)


@pytest.mark.parametrize(
    ("content", "expected"),
    {
        "header too large": (b"9 4\n" + rows(), "header says 9 words, the file has 7"),
        "header too small": (b"6 4\n" + rows(), "header says 6 words, the file has 7"),
        "header of another width": (b"7 5\n" + rows(), "line 2 has 4 numbers, expected 5"),
        "empty header": (b"0 4\n", "header says 0 words of 4 numbers"),
        "header only": (b"3 4\n", "header says 3 words, the file has 0"),
        "binary cut off": (
            word2vec_binary()[:-9],
            "header says 7 words of 4 numbers, the binary file holds 6",
        ),
        "binary header too small": (word2vec_binary().replace(b"7", b"6", 1), "the binary file holds 7"),
        "short line": (word2vec_text().replace(b"\nUSA ", b"\n"), "line 6 has 3 numbers, expected 4"),
        "long line": (rows() + b"more 1 2 3 4 5\n", "line 8 has 5 numbers, expected 4"),
        "word with a space": (word2vec_text().replace(b"USA", b"U SA"), "line 6 has 5 numbers, expected 4"),
        "tabs": (rows() + rows(["tab"], V[:1]).replace(b" ", b"\t"), "line 8 has 0 numbers"),
        "empty line": (rows() + b"\n" + rows(["more"], V[:1]), "line 8 is empty"),
        "not a number": (rows() + b"more 1 two 3 4\n", "line 8 holds something that is not a number"),
        "not a number below a header": (
            b"8 4\n" + rows() + b"more 1 2 3 ,\n",
            "line 9 holds something that is",
        ),
        "NaN": (rows() + b"more 1 nan 3 4\n", "the vector of 'more' is not finite"),
        "inf in a binary": (
            b"1 2\nmore " + struct.pack("<2f", 1, np.inf),
            "the vector of 'more' is not finite",
        ),
        "latin-1": (rows() + "über 1 2 3 4\n".encode("latin-1"), "line 8 is not UTF-8"),
        "latin-1 in a binary": (word2vec_binary().replace("é".encode(), b"\xe9"), "a word is not UTF-8"),
        "byte order mark": (b"\xef\xbb\xbf" + word2vec_text(), "byte order mark"),
        "UTF-16": (word2vec_text().decode().encode("utf-16"), "holds no word vectors"),
        "zip": (b"PK\x03\x04" + bytes(60), "an archive (.zip or .7z); unpack it"),
        "bzip2": (b"BZh91AY&SY" + bytes(60), "compressed (bzip2, xz or zstd); unpack it"),
        "fastText model": (struct.pack("<2i", 793712314, 12) + bytes(60), "a fastText model; give the .vec"),
        "empty": (b"", "it is empty; expected word2vec text or binary"),
        "empty, gzipped": (gzip.compress(b""), "it is empty"),
        "gzip cut off": (gzip.compress(rows())[:-20], "cannot be read: "),
        "damaged gzip": (gzip.compress(rows())[:20] + bytes(200), "cannot be read: "),
        "prose": (b"Once upon a time there was a file.\n", "holds no word vectors; expected word2vec"),
        "noise": (np.random.default_rng(0).bytes(4096), "holds no word vectors"),
        "gzipped pickle": (gzip.compress(pickle.dumps([1])), "a gzipped pickle; unpack it"),
        "another pickle": (pickle.dumps([1]), "it holds a list"),
        "damaged pickle": (b"\x80\x04nonsense", "a pickle that is not opened"),
    }.values(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_is_one_line_that_says_what_and_where(write, content, expected):
    assert expected in fault(write(content, "words.any"))


def test_what_is_no_file(tmp_path):
    assert "does not exist" in fault(tmp_path / "none.txt")
    assert "it is not a file" in fault(tmp_path)


def test_a_file_that_may_not_be_read(write, monkeypatch):
    path = write(rows())

    def refuse(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    assert "cannot be read: [Errno 13] Permission denied" in fault(path)


@pytest.mark.parametrize(
    "content", [word2vec_text(), word2vec_binary(), rows()], ids=["text", "binary", "GloVe"]
)
def test_unicode_errors_reads_on(write, content):
    path = write(content.replace("é".encode(), b"\xe9"))
    assert "caf\ufffd" in vectors_of(WordVectors.open(path, unicode_errors="replace"))
    assert "caf" in vectors_of(WordVectors.open(path, unicode_errors="ignore"))


def test_options_are_checked(write):
    path = write(rows())
    with pytest.raises(InputError, match=r"unicode_errors is 'lax', expected one of .*'strict'"):
        WordVectors.open(path, unicode_errors="lax")
    with pytest.raises(InputError, match="limit is 0, expected at least 1"):
        WordVectors.open(path, limit=0)


def test_a_word_given_twice_keeps_its_first_vector(write):
    opened = WordVectors.open(write(b"8 4\n" + rows() + b"the 1 2 3 4\n"))
    assert len(opened) == 7
    assert_array_equal(opened.lookup("the"), V[0])


# ---- saved by gensim ----------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    def save(name="words.kv", words=WORDS, vectors=V, **options):
        from gensim.models import KeyedVectors

        model = KeyedVectors(vectors.shape[1], dtype=vectors.dtype)
        model.add_vectors(words, vectors)
        model.save(str(tmp_path / name), **options)
        return tmp_path / name

    return save


@pytest.mark.parametrize("name", EXTENSIONS)
def test_saved_vectors_within_the_file(saved, tmp_path, name):
    path = shutil.move(saved(), tmp_path / name)  # gensim itself would gzip by the extension
    opened = WordVectors.open(path)
    assert list(vectors_of(opened)) == WORDS
    assert_array_equal(opened._vectors, V)
    assert list(vectors_of(WordVectors.open(path, limit=2))) == WORDS[:2]


def test_saved_vectors_beside_the_file_are_mapped(saved, tmp_path):
    path = saved(separately=["vectors"])
    opened = WordVectors.open(path)
    assert isinstance(opened._vectors, np.memmap)
    assert_array_equal(opened.lookup("new york"), V[1])
    assert type(opened.lookup("the")) is np.ndarray
    (tmp_path / "words.kv.vectors.npy").unlink()
    assert "words.kv.vectors.npy is missing; keep the two in one folder" in fault(path)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_saved_vectors_of_another_precision(saved, dtype):
    vector = WordVectors.open(saved(vectors=V.astype(dtype))).lookup("the")
    assert vector.dtype == np.float32
    assert_array_equal(vector, V[0].astype(dtype).astype(np.float32))


class Runs:
    """Unpickled by anything careless, it writes a file."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return type(self.target).touch, (self.target,)


def test_a_pickle_that_runs_something_is_refused_before_it_runs(write, tmp_path):
    marker = tmp_path / "it-ran"
    for protocol in (2, 3, 4, 5):
        message = fault(write(pickle.dumps(Runs(marker), protocol), "words.kv"))
        assert "it refers to " in message
        assert "save_word2vec_format" in message
        assert not marker.exists()


def test_nothing_is_reached_through_an_allowed_module(write, tmp_path):
    """gensim.models.keyedvectors imports gensim.utils, whose unpickle() would open the second file."""
    inner = write(pickle.dumps(Runs(tmp_path / "it-ran")), "inner")
    name = b"gensim.models.keyedvectors"
    code = b"\x80\x04\x8c" + bytes([len(name)]) + name + b"\x8c\x0eutils.unpickle\x93"
    code += b"X" + struct.pack("<I", len(str(inner))) + str(inner).encode() + b"\x85R."
    assert "it refers to gensim.models.keyedvectors.utils.unpickle" in fault(write(code, "words.kv"))
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("special", ["__scipys", "__recursive_saveloads", "__numpys"])
def test_side_files_that_gensim_would_unpickle_are_not_touched(saved, tmp_path, special):
    path = saved()
    with path.open("rb") as file:
        model = pickle.load(file)  # noqa: S301
    vars(model)[special] = ["evil"]
    path.write_bytes(pickle.dumps(model))
    for name in ("words.kv.evil", "words.kv.evil.npy"):
        (tmp_path / name).write_bytes(pickle.dumps(Runs(tmp_path / "it-ran")))
    assert len(WordVectors.open(path)) == 7
    assert not (tmp_path / "it-ran").exists()


def test_other_gensim_objects_are_refused(tmp_path):
    from gensim.models import Word2Vec

    Word2Vec([["a", "b"]], vector_size=3, min_count=1, workers=1).save(str(tmp_path / "model"))
    assert "it refers to gensim.models.word2vec.Word2Vec; only" in fault(tmp_path / "model").replace(")", "")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"key_to_index": {"the": 0}}, "its 1 words are not those of its 7 vectors"),
        (
            {"key_to_index": dict(zip(WORDS, [0] * 7, strict=True))},
            "its 7 words are not those of its 7 vectors",
        ),
        ({"vectors": np.arange(7)}, "its vectors are int64 of shape \\(7,\\)"),
        ({"vectors": V[:0]}, "its vectors are float32 of shape \\(0, 4\\)"),
        ({"vectors": np.full((7, 4), np.nan)}, "the vector of 'the' is not finite"),
    ],
)
def test_a_damaged_save_is_refused(saved, change, expected):
    path = saved()
    with path.open("rb") as file:
        model = pickle.load(file)  # noqa: S301
    vars(model).update(change)
    path.write_bytes(pickle.dumps(model))
    with pytest.raises(InputError, match=expected):
        WordVectors.open(path)


# ---- lookup -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "tag", "expected"),
    [
        (["new york", "new_york", "new-york"], "new york", [0]),
        (["x", "new_york", "new-york"], "new york", [1]),
        (["new", "york", "new-york"], "new york", [2]),
        (["new", "york", "x"], "new york", [0, 1]),
        (["New_York", "new", "york"], "new york", [0]),
        (["NEW-YORK", "new", "york"], "new york", [0]),
        (["New", "x", "YORK"], "new york", [0, 2]),
        (["york", "x", "y"], "new york", [0]),
        (["Paris", "PARIS", "paris"], "paris", [2]),
        (["PARIS", "Paris", "x"], "paris", [1]),
        (["PARIS", "x", "y"], "paris", [0]),
        (["x", "y", "z"], "new york", None),
        (["x", "y", "z"], "york", None),
        (["x", "y", "z"], "", None),
    ],
)
def test_lookup_whole_tag_first_then_the_mean_of_its_words(saved, words, tag, expected):
    vectors = np.array([[1, 2], [5, -3], [0.5, 8]], np.float32)
    found = WordVectors.open(saved(words=words, vectors=vectors)).lookup(tag)
    if expected is None:
        assert found is None
    else:
        assert found.dtype == np.float32
        assert_array_equal(found, vectors[expected].mean(axis=0))


def test_what_lookup_gives_is_the_callers_own(write):
    opened = WordVectors.open(write(rows()))
    opened.lookup("the")[:] = 0
    assert_array_equal(opened.lookup("the"), V[0])
