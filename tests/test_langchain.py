"""The LangChain store: LangChain's own suite, unmodified, and what it does not ask."""

import inspect

import pytest
from toy_embeddings import embed, shown, texts

pytest.importorskip("langchain_core")
suite = pytest.importorskip("langchain_tests.integration_tests.vectorstores")

from langchain_core.documents import Document  # noqa: E402
from langchain_core.embeddings import Embeddings  # noqa: E402

from woh_faiss.errors import InputError  # noqa: E402
from woh_faiss.integrations.langchain import WOHVectorStore  # noqa: E402

SMALL = {"bits": 32, "anchors": 30, "vector_size": 5}

for _, method in inspect.getmembers(suite.VectorStoreIntegrationTests, inspect.iscoroutinefunction):
    pytest.mark.asyncio(method)  # which the suite leaves to a setting


class TestStandard(suite.VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path):
        store = WOHVectorStore(tmp_path / "store", self.get_embeddings())
        yield store
        store.close()


class Toy(Embeddings):
    """Embeddings by words; it counts the texts it was given."""

    seen = 0

    def embed_documents(self, texts):
        self.seen += len(texts)
        return [embed(text) for text in texts]

    def embed_query(self, text):
        return embed(text)


def documents(n, seed=0, **tags):
    return [
        Document(
            id=f"{seed}/{i}", page_content=text, metadata={"topic": topic, "tags": [topic, "all"], **tags}
        )
        for i, (text, topic) in enumerate(texts(n, seed))
    ]


@pytest.fixture
def store(tmp_path):
    store = WOHVectorStore(tmp_path / "store", Toy(), learn_from=50, **SMALL)
    yield store
    store.close()


@pytest.fixture
def learned(store):
    store.add_documents(documents(60))
    assert store.documents.index.is_trained
    return store


def topics(found):
    return {document.metadata["topic"] for document in found}


def test_learned_codes_find_the_topic(learned):
    assert topics(learned.similarity_search("wave boat gull", k=8)) == {"sea"}
    assert topics(learned.similarity_search_by_vector(embed("tram neon"), k=8)) == {"city"}
    scored = learned.similarity_search_with_score("snow peak", k=60)
    scores = [score for _, score in scored]
    assert scores == sorted(scores, reverse=True)
    assert 1 >= scores[0] > scores[-1] >= -1
    relevance = [score for _, score in learned.similarity_search_with_relevance_scores("snow peak", k=60)]
    assert relevance == pytest.approx([(score + 1) / 2 for score in scores])


def test_the_standard_life_of_a_document_after_learning(learned):
    """What the suite asks of an empty store, asked of one that has learned."""
    mine = [Document(page_content="a", metadata={"n": 1}, id="x"), Document(page_content="b", id="y")]
    assert learned.add_documents(mine) == ["x", "y"]
    assert learned.get_by_ids(["y", "nobody", "x"]) == [mine[1], mine[0]]
    learned.add_documents([Document(page_content="wave boat", id="x")])
    assert learned.get_by_ids(["x"]) == [Document(page_content="wave boat", id="x")]
    assert "x" in {document.id for document in learned.similarity_search("wave boat", k=40)}
    assert learned.delete(["x", "nobody"]) is True
    assert learned.get_by_ids(["x"]) == []
    assert "x" not in {document.id for document in learned.similarity_search("wave boat", k=100)}
    assert learned.delete() is True
    assert learned.similarity_search("wave", k=3) == []


@pytest.mark.parametrize("n", [20, 60])
def test_filters(store, n):
    store.add_documents(documents(n))
    for given in ({"topic": "hill"}, lambda document: document.metadata["topic"] == "hill"):
        found = store.similarity_search("wave boat", k=100, filter=given)
        assert topics(found) == {"hill"}
        assert len(found) == sum(topic == "hill" for _, topic in texts(n))
    assert store.similarity_search("wave", filter={"topic": "hill", "missing": None}) == []
    with pytest.raises(InputError, match="filter is a list"):
        store.similarity_search("wave", filter=["hill"])


@pytest.mark.parametrize("n", [20, 60])
def test_a_filter_s_operators_choose_as_a_function_does(store, n):
    store.add_documents(documents(n))
    years = {f"y{year}": {"year": year} for year in range(2000, 2010)}
    store.add_documents([Document("wave boat", id=id_, metadata=given) for id_, given in years.items()])
    hills = {f"0/{i}" for i, (_, topic) in enumerate(texts(n)) if topic == "hill"}
    ends = [{"year": 2000}, {"$and": [{"year": {"$gt": 2007}}, {"year": {"$ne": 2009}}]}]
    for filter_, expected in {
        "gt": ({"year": {"$gt": 2005}}, {"y2006", "y2007", "y2008", "y2009"}),
        "between": ({"year": {"$gte": 2003, "$lt": 2005}}, {"y2003", "y2004"}),
        "in": ({"year": {"$in": [2001, 1900]}}, {"y2001"}),
        "or": ({"$or": ends}, {"y2000", "y2008"}),
        "tags": ({"tags": "hill", "topic": {"$exists": True}}, hills),
    }.values():
        found = store.similarity_search("wave boat", k=100, filter=filter_)
        assert {document.id for document in found} == expected


@pytest.mark.parametrize(
    ("method", "unknown"),
    [
        ("similarity_search", "where"),
        ("similarity_search", "score_threshold"),
        ("similarity_search_with_score", "filters"),
        ("max_marginal_relevance_search", "where"),
    ],
)
def test_arguments_of_other_stores_are_refused_by_name(store, method, unknown):
    with pytest.raises(InputError, match=f"{method} takes no {unknown}; "):
        getattr(store, method)("wave", **{unknown: 1})
    with pytest.raises(InputError, match=f"takes no {unknown}"):
        store.as_retriever(search_kwargs={unknown: 1}).invoke("wave")


def test_a_removal_by_a_filter_removes_nothing(learned):
    with pytest.raises(InputError, match="delete takes no filter; give ids"):
        learned.delete(filter={"topic": "sea"})
    with pytest.raises(InputError, match="add_documents takes no namespace"):
        learned.add_documents(documents(1), namespace="x")
    assert len(learned.documents) == 60


def test_a_threshold_of_relevance_is_kept_to(learned):
    above = learned.as_retriever(
        search_type="similarity_score_threshold", search_kwargs={"k": 60, "score_threshold": 0.6}
    ).invoke("wave boat")
    scored = learned.similarity_search_with_relevance_scores("wave boat", k=60)
    assert 0 < len(above) == sum(score >= 0.6 for _, score in scored) < 60


def test_retrievers_and_marginal_relevance(learned):
    assert topics(learned.as_retriever(search_kwargs={"k": 5}).invoke("wave salt")) == {"sea"}
    found = learned.as_retriever(search_type="mmr", search_kwargs={"k": 4, "fetch_k": 12}).invoke("wave salt")
    assert len({document.id for document in found}) == 4
    near = learned.similarity_search("wave salt", k=12)
    assert all(document in near for document in found)
    learned.delete()
    assert learned.max_marginal_relevance_search("wave") == []


def test_from_texts_opens_and_adds(tmp_path):
    words, own = zip(*texts(60), strict=True)
    made = {"folder": tmp_path / "store", "learn_from": 50, **SMALL}
    store = WOHVectorStore.from_texts(list(words), Toy(), [{"t": topic} for topic in own], tags="t", **made)
    assert store.documents.index.ntotal == 60
    assert {tag for tag, *_ in store.documents.index.tags()} == set(own)
    store.close()
    again = WOHVectorStore.from_documents([Document(page_content="more", id="m")], Toy(), **made)
    assert again.get_by_ids(["m"])[0].page_content == "more"
    assert again.documents.index.ntotal == 61
    assert again.embeddings.seen == 1  # nothing is embedded twice
    again.close()
    with pytest.raises(InputError, match="folder is None"):
        WOHVectorStore.from_texts(["a"], Toy())


def test_tags_by_a_function_and_learning_by_hand(tmp_path):
    store = WOHVectorStore(
        tmp_path / "s", Toy(), tags=lambda document: document.page_content.split()[:2], **SMALL
    )
    store.add_documents(documents(40))
    assert store.learn() == 40
    assert "wave" in {tag for tag, *_ in store.documents.index.tags()}
    store.close()


def test_what_is_refused(store):
    with pytest.raises(InputError, match="1 ids for 2 documents"):
        store.add_documents(documents(2), ids=["a"])
    with pytest.raises(InputError, match="tags of row 0 are 7"):
        store.add_documents(documents(1, tags=7))
    with pytest.raises(InputError, match="JSON"):
        store.add_documents(documents(1, when=object()))
    assert store.add_documents([]) == []
    assert len(store.documents) == 0


def test_the_documentation_s_lines_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"embeddings": Toy()}
    exec(shown("LangChain"), names)  # noqa: S102
    assert names["store"].similarity_search("x", filter={"year": 2020})[0].metadata["tags"] == [
        "sea",
        "boats",
    ]
    names["store"].close()


def test_the_example_runs(example, tmp_path):
    assert "600 documents, 64 bits each" in example("langchain_store.py")
    assert list(tmp_path.iterdir()) == []
