"""Tags as people type them: scripts, separators, lists as text, characters that show nothing."""

import ast
import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from conftest import length
from failing_parser import FailingParser
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from woh_faiss import WOHIndex, WordVectors
from woh_faiss.errors import InputError, StoreError
from woh_faiss.tags.splitting import TagTexts, split, told
from woh_faiss.tags.tag_lists import TagLists
from woh_faiss.tags.tag_text import normalise, words
from woh_faiss.tags.vocabulary import Vocabulary

# ---- words of captions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("हिन्दी में लिखा।", ["हिन्दी", "में", "लिखा"]),
        ("తెలుగు భాష", ["తెలుగు", "భాష"]),
        ("বাংলা ভাষা", ["বাংলা", "ভাষা"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("اللُّغَة العربية", ["اللُّغَة", "العربية"]),
        ("می‌خواهم", ["می‌خواهم"]),
        ("ශ්‍රී ලංකා", ["ශ්‍රී", "ලංකා"]),
        ("U\u0308ber die Bru\u0308cke", ["über", "die", "brücke"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("海滩 日落", ["海", "滩", "日", "落"]),
        ("日本のカメラ", ["日", "本", "の", "カメラ"]),
        ("ภาษาไทย ดี", ["ภาษาไทย", "ดี"]),
        ("col·lecció מילים־מקף צה״ל", ["col·lecció", "מילים־מקף", "צה״ל"]),
        ("soft\u00adhyphen café", ["soft\u00adhyphen", "café"]),
        ("Sunset 🌅 ☀️ 👨‍👩‍👧 🇩🇪 1️⃣ © 20 °C", ["sunset", "🌅", "☀️", "👨‍👩‍👧", "🇩🇪", "1️⃣", "20", "c"]),
        ("A dog, at the sea-side! can't won’t", ["a", "dog", "at", "the", "sea-side", "can't", "won’t"]),
    ],
)
def test_words_are_whole_in_every_script(sentence, expected):
    assert words(sentence) == expected
    apart = unicodedata.normalize("NFD", sentence)
    assert words(apart) == [unicodedata.normalize("NFC", word) for word in expected]


@given(st.text(st.characters(max_codepoint=0x17F, exclude_characters="·\u00adİ")))
def test_words_of_latin_letters_are_what_they_were(sentence):
    """Codes that were learned from English captions stay."""
    before = re.findall(r"\w+(?:['’\-]\w+)*", unicodedata.normalize("NFC", sentence.lower()))
    assert words(sentence) == before


def letters(text):
    """All that is a letter, a mark or a number, in order, without characters that show nothing."""
    return [c for c in text if unicodedata.category(c)[0] in "LMN"]


@settings(max_examples=length(400))
@given(st.text())
@example("a\u0301́ も゙ 😀\u0301 !\u0301")
def test_no_letter_of_a_sentence_is_lost(sentence):
    found = words(sentence)
    assert letters("".join(found)) == letters(unicodedata.normalize("NFC", sentence.lower()))
    assert [again for word in found for again in words(word)] == found


# ---- one tag, however it is typed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forms",
    [
        ("☀", "☀️", "☀\ufe0e"),
        ("sea", "#sea", "#Sea", "# sea", "＃sea", "##sea", "se\u00ada", "\u200bsea", "se\u2060a\ufeff"),
        ("میخواهم", "می‌خواهم"),
        ("1⃣", "1️⃣"),
        ("straße", "STRASSE", "Straße"),
        ("θάλασσας", "ΘΆΛΑΣΣΑΣ"),
        ("हिन्दी", "हिन्\u200dदी"),
    ],
)
def test_forms_of_one_tag(forms):
    assert len({*map(normalise, forms)}) == 1


def test_forms_of_different_tags():
    flags = ["🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "🏴"]
    others = ["#️⃣", "c#", "c", "f♯", "👍", "👍🏽", "हिन", "हिन्दी"]
    assert len({normalise(tag) for tag in flags + others}) == len(flags + others)


def test_word_vectors_are_looked_up_as_typed_then_composed_then_lower_then_folded():
    known = ["θάλασσας", "straße", "iPhone", "Apple", "apple", "über", "new_york", "می‌خواهم", "☀️"]
    vectors = WordVectors(Path(), {w: i for i, w in enumerate(known)}, np.eye(len(known), dtype=np.float32))

    def found(tag):
        return known[int(np.argmax(vectors.lookup(tag)))]

    for tag in known:
        assert found(tag) == tag
    assert found("ΘΆΛΑΣΣΑΣ") == "θάλασσας"
    assert found("STRASSE") == found("Straße") == "straße"
    assert found("iphone") == found("#IPHONE") == "iPhone"
    assert found("U\u0308ber") == "über"
    assert found("New-York") == "new_york"
    assert found("APPLE") == "apple"
    assert found("☀") == "☀️"
    assert vectors.lookup("unheard") is None
    assert_array_equal(vectors.lookup("straße apple"), (np.eye(9)[1] + np.eye(9)[4]) / 2)


def test_tags_are_shown_as_they_were_typed(tmp_path):
    X = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    tags = [["Straße", "iPhone"], ["STRASSE", "θάλασσας"]] * 20
    with WOHIndex.build(tmp_path / "i.woh", [], bits=16, anchors=20) as index:
        index.update(X, tags)
        assert [item.tags for item in index.items([0, 1])] == tags[:2]
        assert sorted(tag for tag, _, _ in index.tags()) == ["Straße", "iPhone", "θάλασσας"]
        assert {tag for row in index.explain([0, 1]) for tag, _ in row} <= {"Straße", "iPhone", "θάλασσας"}
        index.update(X, [["strasse"]] * 40)
        assert {tag: count for tag, count, _ in index.tags()}["Straße"] == 80
    with WOHIndex.open(tmp_path / "i.woh") as index:
        found = index.describe(*index.search_tags(["STRASSE"], 3))[0]
        assert {normalise(tag) for hit in found for tag in hit.tags} >= {"strasse"}


def test_what_was_typed_otherwise_is_forgotten_with_its_items(tmp_path):
    """`compact` compares forms, too: the catalogue's is the first that was typed."""
    X = np.random.default_rng(0).normal(size=(41, 8)).astype(np.float32)
    with WOHIndex.build(tmp_path / "i.woh", [], bits=16, anchors=20, min_count=5) as index:
        index.update(X, [["sea"]] * 38 + [["Secret", "Kept"], ["SECRET"], ["kept"]])
        index.remove([38, 39])
        index.compact()
        assert {tag for tag, _, _ in index.tags()} == {"sea", "Kept"}
    assert b"ecret" not in b"".join(path.read_bytes() for path in (tmp_path / "i.woh").iterdir())


def test_a_catalogue_with_two_forms_of_a_tag_is_refused():
    rows = [(None, "☀", 1, None), (None, "☀️", 1, None)]
    with pytest.raises(StoreError, match="two forms: an earlier version made it; build again"):
        Vocabulary.from_rows(rows, 1)


# ---- several tags in one text ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "expected", "note"),
    [
        ("sea, golden gate,fog / hill, snow / fog", "sea+golden gate+fog / hill+snow / fog", "at commas"),
        ("sea|golden gate / hill | snow", "sea+golden gate / hill+snow", "at pipes"),
        ("sea, hill / golden gate", "sea+hill / golden+gate", "1 of the first 2 texts have commas"),
        ("sea hill / golden gate;", "sea+hill / golden gate", ""),
        ("sea, hill; / a;b, c", "sea, hill / a+b, c", ""),
        (
            'sea "golden gate" 5"x7 / "a b", c',
            'sea+golden gate+5"x7 / a b+c',
            "1 of the first 2 texts have commas",
        ),
        ('"sea","golden gate, SF" / "hill, snow"', "sea+golden gate, SF / hill+snow", "at commas"),
        (
            '["sea", "golden gate"] / [] / ["caf\\u00e9", null]',
            "sea+golden gate /  / café",
            "as text",
        ),
        (
            "['sea', \"king's road\"] / ('a',) / {'a', 'b'}",
            "sea+king's road / a / a+b",
            "lists that are written as text",
        ),
        ("['sea' 'golden gate'\n 'fog']", "sea+golden gate+fog", "lists that are written as text"),
        ("['a\\'b'] / ['\\d']", "a'b / \\d", "lists that are written as text"),
        ("[wip] sea / (new)", "[wip]+sea / (new)", ""),
        ("#sea #sunset", "#sea+#sunset", ""),
    ],
)
def test_the_first_rows_tell_what_stands_between_tags(texts, expected, note):
    notes = []
    found = TagLists.from_strings(texts.split(" / "), TagTexts(note=notes.append))
    assert " / ".join("+".join(found.of_row(row)) for row in range(len(found))) == expected
    assert note in " ".join(notes)
    assert bool(note) == bool(notes)


def test_an_escape_is_read_again_where_the_parser_fails(monkeypatch):
    monkeypatch.setattr(ast, "literal_eval", FailingParser({0}))
    assert TagLists.from_strings([r"['a\'b', '\d']"]).of_row(0) == ["a'b", r"\d"]


def test_later_texts_are_split_as_the_first():
    split_as = TagTexts()
    TagLists.from_strings(["sea, golden gate"], split_as)
    assert TagLists.from_strings(["golden gate", "a;b c"], split_as).of_row(0) == ["golden gate"]
    assert TagLists.from_strings(["golden gate", "a;b c"], split_as).of_row(1) == ["a", "b c"]


def test_texts_that_cannot_be_split_tell_nothing():
    """Of which the next ones tell, whatever the chunks are."""
    notes = []
    split_as = TagTexts(note=notes.append)
    for texts in (["sea", "", "hill"], ['["sea"]'], ['["hill"]', "fog"], ["golden gate, sea"], ["a b"]):
        found = TagLists.from_strings(texts, split_as)
    assert found.of_row(0) == ["a b"]
    assert notes == [
        "lists that are written as text are read as lists",
        "tags are split at commas, not at blanks",
    ]
    late = ["sea"] * 500 + ["sea, golden gate"]
    assert TagLists.from_strings(late).of_row(500) == ["sea", "golden gate"]


def test_a_separator_that_is_asked_for_is_the_only_one():
    comma = TagTexts(",")
    assert TagLists.from_strings(['a;b c,["x"]'], comma).of_row(0) == ["a;b c", '["x"]']
    assert TagLists.from_strings(["a;b c"], TagTexts(" ")).of_row(0) == ["a;b", "c"]
    with pytest.raises(InputError, match="separator of tags is ', ', expected one character"):
        TagTexts(", ")


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2]",
        "[sea, hill]",
        '{sea,"golden gate"}',
        '{"sea": 1}',
        '[["sea"]]',
        '["sea", {}]',
        "[" * 3000 + ",]",
    ],
)
def test_a_list_of_something_else_is_refused_with_its_row(text):
    with pytest.raises(InputError, match=r"tags of row 1 are .*looks like a list and is not") as caught:
        TagLists.from_strings(["sea", text])
    assert "\n" not in str(caught.value)


SCRIPTS = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
        st.sampled_from(" ,;|#\"'[](){}\\-_\t\n\u00ad\u200b\u200d\ufe0f\u0301"),
    ),
    max_size=30,
)


@settings(max_examples=length(600))
@given(st.lists(SCRIPTS, min_size=1, max_size=4), st.sampled_from([None, ",", "|", ";", " ", "\t", "é"]))
def test_splitting_loses_no_letter_in_silence_and_is_idempotent(texts, separator):
    try:
        found = TagLists.from_strings(texts, TagTexts(separator))
    except InputError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert re.search("tags of row [0-9] are .* looks like a list", refusal)
        return
    encoded = np.array([text.encode() for text in texts], object)
    assert TagLists.from_strings(encoded, TagTexts(separator)).names == found.names
    marks = separator or told(texts).separators
    for row, text in enumerate(texts):
        tags = found.of_row(row)
        bare = text.strip()
        if separator is None and bare[:1] in tuple("[({") and bare[-1:] in tuple("])}") and "\\" in bare:
            continue  # a list whose escapes stand for letters
        typed = letters("".join(split(text, marks)))
        assert typed == [c for c in letters(text) if c != separator]
        assert set(letters("".join(tags))) == set(typed)
        assert TagLists.from_lists([tags]).of_row(0) == tags
        if not any(mark in tag for tag in tags for mark in ';"[({'):
            assert TagLists.from_strings([";".join([*tags, ""])], TagTexts(";")).of_row(0) == tags
        for tag in tags:
            form = normalise(tag)
            assert normalise(form) == form
            if {unicodedata.category(c) for c in tag} & {"Ll", "Lu", "Nd"}:
                assert form  # what has a letter is a tag


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
def test_lists_as_text_are_those_lists(tags):
    expected = TagLists.from_lists([tags]).of_row(0)
    for text in (json.dumps(tags), json.dumps(tags, ensure_ascii=False), repr(tags)):
        assert TagLists.from_strings([text]).of_row(0) == expected


def test_text_in_another_encoding_is_refused():
    for encoding in ("utf-16", "utf-32", "latin-1"):
        with pytest.raises(InputError, match=r"not UTF-8 text|NUL"):
            TagLists.from_strings(np.array(["sea été".encode(encoding)], object))
