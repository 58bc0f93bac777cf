"""The LangChain store: LangChain's own suite, unmodified, and what it does not ask."""

import inspect

import pytest

pytest.importorskip("langchain_core")
suite = pytest.importorskip("langchain_tests.integration_tests.vectorstores")

from woh_faiss.integrations.langchain import WOHVectorStore  # noqa: E402

for _, method in inspect.getmembers(suite.VectorStoreIntegrationTests, inspect.iscoroutinefunction):
    pytest.mark.asyncio(method)  # which the suite leaves to a setting


class TestStandard(suite.VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path):
        store = WOHVectorStore(tmp_path / "store", self.get_embeddings())
        yield store
        store.close()
