"""The options of a KV connector: vLLM's names, and one line for what is wrong."""

import pytest

from tiny_llm_extensions.kv_transfer.config import KVTransferConfig

WRONG = {
    "kv_role is ''": {},
    "kv_role is 'producer'": {"kv_role": "producer"},
    "kv_port is -1": {"kv_role": "kv_both", "kv_port": -1},
    "kv_ip is '10.0.0.1'": {"kv_role": "kv_both", "kv_ip": "10.0.0.1"},
    "kv_buffer_size": {"kv_role": "kv_both", "kv_buffer_size": "1GB"},
    "'layers' is unknown": {"kv_role": "kv_both", "kv_connector_extra_config": {"layers": 3}},
    "kv_connector is 'NixlConnector'": {"kv_role": "kv_both", "kv_connector": "NixlConnector"},
    "kv_load_failure_policy": {"kv_role": "kv_both", "kv_load_failure_policy": "fail"},
}


@pytest.mark.parametrize("error", WRONG)
def test_wrong_options_are_refused_in_one_line(error):
    with pytest.raises(ValueError, match=error):
        KVTransferConfig.of(WRONG[error])


def test_options_have_the_names_of_vllm(monkeypatch):
    given = {
        "kv_role": "kv_producer",
        "engine_id": "e",
        "kv_rank": 0,
        "kv_parallel_size": 1,
        "kv_ip": "10.0.0.1",
    }
    config = KVTransferConfig.of({**given, "kv_connector_extra_config": {"secret": "s", "transport": "tcp"}})
    assert config.is_kv_producer and not config.is_kv_consumer and config.may_reach("other.host")
    monkeypatch.setenv("TINY_LLM_KV_SECRET", "of the environment")
    assert KVTransferConfig.of(given).secret == "of the environment"
    assert not KVTransferConfig("kv_both").may_reach("127.example.org")
