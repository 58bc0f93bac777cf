"""The Haystack store: Haystack's own suites, and what they do not ask."""

import os

import pytest
from toy_embeddings import embed, shown, texts

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # before the import: it would reach for the network
haystack = pytest.importorskip("haystack")

from haystack.testing import document_store as suite  # noqa: E402

from woh_faiss.integrations.haystack import WOHDocumentStore, WOHEmbeddingRetriever  # noqa: E402

Document = haystack.Document
POLICY = suite.DuplicatePolicy
SMALL = {"bits": 32, "anchors": 30, "vector_size": 5}


@pytest.fixture
def document_store(tmp_path):
    store = WOHDocumentStore(tmp_path / "store", learn_from=50, **SMALL)
    yield store
    store.close()


class TestStandard(suite.DocumentStoreBaseExtendedTests, suite.CountDocumentsByFilterTest):
    @pytest.fixture
    def document_store(self, tmp_path):
        store = WOHDocumentStore(tmp_path / "store")
        yield store
        store.close()

    def test_write_documents(self, document_store):
        """The suite leaves this one to the store: no policy is FAIL."""
        doc = Document(content="test doc")
        assert document_store.write_documents([doc]) == 1
        with pytest.raises(suite.DuplicateDocumentError):
            document_store.write_documents([doc])
        assert document_store.filter_documents() == [doc]


def documents(n, seed=0):
    return [
        Document(
            id=f"{seed}/{i}",
            content=text,
            meta={"topic": topic, "tags": [topic, "all"]},
            embedding=embed(text),
        )
        for i, (text, topic) in enumerate(texts(n, seed))
    ]


def test_learned_codes_take_the_embeddings_place(document_store):
    given = documents(60)
    assert document_store.write_documents(given) == 60
    assert document_store.documents.index.ntotal == 60
    kept = document_store.filter_documents({"field": "meta.topic", "operator": "==", "value": "sea"})
    assert [document.content for document in kept] == [d.content for d in given if d.meta["topic"] == "sea"]
    assert all(document.embedding is None for document in kept)
    found = document_store.search(embed("wave boat gull"), top_k=8)
    assert {document.meta["topic"] for document in found} == {"sea"}
    assert [d.score for d in found] == sorted((d.score for d in found), reverse=True)


def test_everything_of_a_document_comes_back(document_store):
    whole = Document(
        content=None,
        blob=haystack.dataclasses.ByteStream(b"\x00\xff", mime_type="image/png", meta={"a": 1}),
        meta={"content": "clashes", "n": [1, 2.5, None]},
        embedding=embed("x"),
        sparse_embedding=haystack.dataclasses.SparseEmbedding([1, 5], [0.5, 0.25]),
    )
    document_store.write_documents([whole])
    assert document_store.filter_documents() == [whole]


def test_duplicates_within_one_list(document_store):
    twice = [Document(id="1", content="a"), Document(id="1", content="b")]
    with pytest.raises(suite.DuplicateDocumentError, match="comes twice"):
        document_store.write_documents(twice)
    assert document_store.count_documents() == 0
    assert document_store.write_documents(twice, POLICY.SKIP) == 1
    assert document_store.write_documents(twice, POLICY.OVERWRITE) == 2
    assert document_store.filter_documents() == [twice[1]]


def test_no_filter_deletes_nothing(document_store):
    document_store.write_documents(documents(3))
    for change in (document_store.delete_by_filter, lambda no: document_store.update_by_filter(no, {"a": 1})):
        with pytest.raises(haystack.errors.FilterError):
            change({})
    assert document_store.filter_documents() == documents(3)


def test_new_metadata_keeps_the_code(document_store):
    document_store.write_documents(documents(60))
    hills = {"field": "meta.topic", "operator": "==", "value": "hill"}
    changed = document_store.update_by_filter(hills, {"high": True})
    found = document_store.search(
        embed("snow peak"), {"field": "meta.high", "operator": "==", "value": True}, 100
    )
    assert len(found) == changed > 10
    assert document_store.documents.index.ntotal == 60


def test_a_pipeline_is_saved_loaded_and_run(document_store):
    document_store.write_documents(documents(60))
    pipeline = haystack.Pipeline()
    hills = {"field": "meta.topic", "operator": "==", "value": "hill"}
    pipeline.add_component("find", WOHEmbeddingRetriever(document_store, top_k=5, filters=hills))
    again = haystack.Pipeline.loads(pipeline.dumps(), allowed_modules=["woh_faiss.integrations.haystack"])
    for each in (pipeline, again):
        found = each.run({"find": {"query_embedding": embed("wave boat")}})["find"]["documents"]
        assert [document.meta["topic"] for document in found] == ["hill"] * 5
        found = each.run({"find": {"query_embedding": embed("wave boat"), "filters": {}, "top_k": 2}})
        assert len(found["find"]["documents"]) == 2
    again.get_component("find").document_store.close()


def test_the_documentation_s_lines_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"vector": embed("x")}
    exec(shown("Haystack"), names)  # noqa: S102
    assert names["retriever"].run(embed("x"))["documents"][0].meta == {"tags": ["sea"]}
    names["store"].close()


def test_what_is_refused(document_store):
    with pytest.raises(ValueError, match="top_k is 0"):
        WOHEmbeddingRetriever(document_store, top_k=0)
    with pytest.raises(ValueError, match="expected a WOHDocumentStore"):
        WOHEmbeddingRetriever("store")
    with pytest.raises(ValueError, match="k is 0"):
        WOHEmbeddingRetriever(document_store).run(embed("x"), top_k=0)
