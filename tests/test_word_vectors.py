import ast
import contextlib
import gzip
import io
import pickle
import re
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from woh_faiss.errors import InputError
from woh_faiss.tags.word_vectors import WordVectors

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


def zipped_text():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("glove.txt", rows())
    return buffer.getvalue()


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
        "zip": (zipped_text(), "an archive (.zip or .7z); unpack it"),
        "damaged zip": (b"PK\x03\x04" + bytes(60), "the archive cannot be read"),
        "bzip2": (b"BZh91AY&SY" + bytes(60), "compressed (bzip2, xz or zstd); unpack it"),
        "fastText model": (struct.pack("<2i", 793712314, 12) + bytes(60), "a fastText model; give the .vec"),
        "empty": (b"", "it is empty; expected word2vec text or binary"),
        "empty, gzipped": (gzip.compress(b""), "it is empty"),
        "gzip cut off": (gzip.compress(rows())[:-20], "cannot be read: "),
        "damaged gzip": (gzip.compress(rows())[:20] + bytes(200), "cannot be read: "),
        "prose": (b"Once upon a time there was a file.\n", "holds no word vectors; expected word2vec"),
        "noise": (np.random.default_rng(0).bytes(4096), "holds no word vectors"),
        "zip, gzipped": (gzip.compress(b"PK\x03\x04" + bytes(60)), "a gzipped archive; unpack it"),
        "an empty zip": (b"PK\x05\x06" + bytes(18), "an archive (.zip or .7z); unpack it"),
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


# ---- saved by WordVectors.save ------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXTENSIONS)
def test_saved_vectors_open_as_they_were(write, tmp_path, name):
    path = WordVectors.open(write(word2vec_text(), "text")).save(tmp_path / name)
    opened = WordVectors.open(path)
    assert list(vectors_of(opened)) == WORDS
    assert opened._vectors.dtype == np.float32
    assert_array_equal(opened._vectors, V)
    assert list(vectors_of(WordVectors.open(path, limit=2))) == WORDS[:2]
    assert opened.save(tmp_path / "again").read_bytes() == path.read_bytes()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=6, unique=True))
def test_any_words_are_saved(tmp_path_factory, words):
    path = tmp_path_factory.mktemp("any") / "words"
    index = {word: at for at, word in enumerate(words)}
    WordVectors(path, index, np.eye(len(words), 3)).save(path)
    assert WordVectors.open(path)._index == index


def test_a_word_twice_is_saved_once(write, tmp_path):
    opened = WordVectors.open(write(b"8 4\n" + rows() + b"the 1 2 3 4\n"))
    assert list(vectors_of(WordVectors.open(opened.save(tmp_path / "saved")))) == WORDS


def test_saved_vectors_hold_no_object_and_are_small(write, tmp_path):
    path = WordVectors.open(write(rows())).save(tmp_path / "saved.npz")
    with np.load(path, allow_pickle=False) as found:
        assert {name: found[name].dtype for name in found} == {
            "words": np.uint8,
            "offsets": np.int64,
            "vectors": np.float32,
        }


def test_saving_fails_in_one_line_and_keeps_what_was_there(write, tmp_path):
    opened = WordVectors.open(write(rows()))
    (tmp_path / "folder").mkdir()
    for target in (tmp_path / "folder", tmp_path / "none" / "words.npz", "/proc/words.npz"):
        with pytest.raises(InputError, match="cannot write word vectors to "):
            opened.save(target)
    link = tmp_path / "link"
    link.symlink_to("target")
    opened.save(link)
    assert link.is_symlink()
    assert len(WordVectors.open(tmp_path / "target")) == 7
    assert not list(tmp_path.glob(".woh*"))


def saved_arrays(**changes):
    words = "".join(WORDS).encode()
    ends = np.cumsum([0, *map(len, WORDS)])
    return {"words": np.frombuffer(words, np.uint8), "offsets": ends, "vectors": V} | changes


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"vectors": V[:0]}, "its vectors are float32 of shape (0, 4)"),
        ({"vectors": V.astype(np.float64)}, "its vectors are float64"),
        ({"vectors": V[0]}, "its vectors are float32 of shape (4,)"),
        ({"vectors": V[:6]}, "its words are not those of its 6 vectors"),
        ({"vectors": np.full((7, 4), np.nan, np.float32)}, "the vector of 'the' is not finite"),
        ({"vectors": np.array([[{}]], object)}, "key 'vectors' is a pickled object array"),
        ({"words": np.zeros(40, np.int64)}, "its words are not those of its 7 vectors"),
        ({"words": np.full(31, 0xFF, np.uint8)}, "its words are not UTF-8"),
        ({"words": np.zeros(3, np.uint8)}, "the ends of its words are not in order"),
        ({"offsets": saved_arrays()["offsets"][::-1]}, "the ends of its words are not in order"),
        ({"offsets": np.array([0, 0, 0, 0, 0, 0, 0, len("".join(WORDS))])}, "it has a word twice"),
        ({"offsets": np.zeros(8)}, "its words are not those of its 7 vectors"),
    ],
)
def test_a_damaged_save_is_refused(tmp_path, changes, expected):
    with (tmp_path / "saved").open("wb") as file:
        np.savez(file, **saved_arrays(**changes))
    assert expected in fault(tmp_path / "saved")


def test_a_save_that_unpacks_to_far_more_is_refused(tmp_path):
    with (tmp_path / "saved").open("wb") as file:
        np.savez_compressed(file, **saved_arrays(vectors=np.zeros((7, 8_000_000), np.float32)[:, ::1]))
    assert "key 'vectors' unpacks " in fault(tmp_path / "saved")


def test_forty_thousand_words_open_in_the_time_of_reading_them(tmp_path):
    """Text takes a hundred times as long: here it is compared with nothing but np.load of the same arrays."""
    words = {f"word{i}": i for i in range(40_000)}
    matrix = np.random.default_rng(0).normal(size=(40_000, 100)).astype(np.float32)
    path = WordVectors(tmp_path / "w", words, matrix).save(tmp_path / "w.npz")

    def plain():
        with np.load(path, allow_pickle=False) as found:
            return [found[name] for name in found]

    def best(work):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        return min(times)

    assert best(lambda: WordVectors.open(path)) < 0.1 + 4 * best(plain)


# ---- pickles ------------------------------------------------------------------------------------------


class Runs:
    """Unpickled by anything, it writes a file."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return type(self.target).touch, (self.target,)


def gensim_save(**options):
    from gensim.models import KeyedVectors

    model = KeyedVectors(4)
    model.add_vectors(WORDS, V)
    buffer = io.BytesIO()
    model.save(buffer, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_is_refused_by_its_first_bytes(write, tmp_path, protocol):
    saved = gensim_save(pickle_protocol=protocol)
    for content in (saved, gzip.compress(saved), saved[:8]):
        message = fault(write(content, "words.kv"))
        assert 'KeyedVectors.load("x.kv").save_word2vec_format("x.bin", binary=True)' in message
    if protocol >= 2:
        marker = tmp_path / "it-ran"
        assert "no pickle is read" in fault(write(pickle.dumps(Runs(marker), protocol), "words.txt"))
        assert not marker.exists()


def test_what_the_refusal_says_converts_the_file(write, tmp_path):
    from gensim.models import KeyedVectors

    message = fault(write(gensim_save(), "x.kv"))
    line = re.search(r"KeyedVectors\.load\(.*\)", message)[0]
    with contextlib.chdir(tmp_path):
        eval(line, {"KeyedVectors": KeyedVectors})  # noqa: S307 - what a user would paste
    assert list(vectors_of(WordVectors.open(tmp_path / "x.bin"))) == WORDS


def test_a_pickle_is_not_opened_whatever_it_asks_for(write):
    """Ten bytes can ask for 64 GB; 71 named numpy's dtype with a chosen state and ended the process."""
    tracemalloc.start()
    for code in (b"Nr\xff\xff\xff\xff.", b"\x8e" + struct.pack("<Q", 2**62), b"cnumpy\ndtype\n(U"):
        fault(write(b"\x80\x04" + code, "words.kv"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


class ManyObjects:
    """Unpickled, an array of 160 MB; the pickle has 46 bytes."""

    def __reduce__(self):
        return np.ndarray, ((20_000_000,), "O")


def test_a_pickle_of_known_classes_allocates_nothing_and_changes_no_class(write):
    """Both are whole: an unpickler that allows numpy.ndarray and gensim's class would obey them."""
    from gensim.models import KeyedVectors

    before = KeyedVectors.load
    sets = b"\x80\x04cgensim.models.keyedvectors\nKeyedVectors\nN}X\x04\0\0\0loadX\x05\0\0\0others\x86b."
    tracemalloc.start()
    try:
        for content in (pickle.dumps(ManyObjects(), 4), sets):
            fault(write(content, "words.kv"))
        peak = tracemalloc.get_traced_memory()[1]
        after = KeyedVectors.load
    finally:
        tracemalloc.stop()
        if "load" in vars(KeyedVectors):
            del KeyedVectors.load
    assert after == before
    assert peak < 1 << 20


def test_nothing_in_the_package_can_unpickle():
    """No module loads a pickle, and every np.load, load_array and write_array says so."""
    for path in sorted(Path("woh_faiss").rglob("*.py")) + sorted(Path("cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] not in {
                    "pickle",
                    "joblib",
                    "dill",
                    "cloudpickle",
                    "shelve",
                    "marshal",
                }
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {
                "read_array",
                "write_array",
            } | ({"load"} if ast.unparse(node.func) in {"np.load", "numpy.load"} else set()):
                assert any(k.arg == "allow_pickle" and not ast.literal_eval(k.value) for k in node.keywords)


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
def test_lookup_whole_tag_first_then_the_mean_of_its_words(words, tag, expected):
    vectors = np.array([[1, 2], [5, -3], [0.5, 8]], np.float32)
    found = WordVectors(Path(), {word: at for at, word in enumerate(words)}, vectors).lookup(tag)
    if expected is None:
        assert found is None
    else:
        assert found.dtype == np.float32
        assert_array_equal(found, vectors[expected].mean(axis=0))


def test_what_lookup_gives_is_the_callers_own(write):
    opened = WordVectors.open(write(rows()))
    opened.lookup("the")[:] = 0
    assert_array_equal(opened.lookup("the"), V[0])
