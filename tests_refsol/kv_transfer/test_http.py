"""Two servers, one of which computes prompts for the other: what a proxy sends, and what it reads of them."""

import threading

from tests_refsol.server.asking import ask, client_of, exchange, until
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_extensions.llm import LLM
from tiny_llm_server.background_server import BackgroundServer
from tiny_llm_server.disaggregated.engines import DECODE, PREFILL, ProxiedEngine
from tiny_llm_server.disaggregated.proxy_app import create_proxy_app
from tiny_llm_server.server import ServerOptions, create_app

from .pairs import SMALL
from .test_engines import PROMPTS, READS, SENDS

RECEIVED = 'tiny_llm:kv_transfer_received_tokens_total{model_name="tiny-qwen3"}'


def server(folder, config):
    options = {**SMALL, "backend": installed_backends()[-1], "device": "cpu", "kv_transfer_config": config}
    return BackgroundServer(create_app(lambda: LLM(folder, **options), ServerOptions()))


def body(params, **more):
    return {
        "prompt": PROMPTS[4],
        "temperature": 0,
        "kv_transfer_params": {"transfer_id": "a", **params},
        **more,
    }


def test_both_get_a_request_at_once_and_the_second_one_answers(two_layers):
    with server(two_layers, SENDS) as sends, server(two_layers, READS) as reads:
        host, port = ask(sends, "GET", "/health")[2]["kv_transfer"].split(":")
        assert "kv_transfer" not in ask(reads, "GET", "/health")[2]
        there = {"remote_host": host, "remote_port": int(port), "do_remote_prefill": True}
        first = body({"do_remote_decode": True}, max_tokens=1)
        asking = threading.Thread(target=ask, args=[sends, "POST", "/v1/completions", first])
        asking.start()
        status, _, answer = ask(reads, "POST", "/v1/completions", body(there, max_tokens=5))
        asking.join()
        _, _, alone = ask(
            reads, "POST", "/v1/completions", {**body({}, max_tokens=5), "kv_transfer_params": None}
        )
        assert status == 200 and answer["choices"][0]["text"] == alone["choices"][0]["text"]
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 89
        numbers = exchange(reads, "GET", "/metrics")[2]
        assert f"{RECEIVED} 89.0" in numbers
        status, _, answer = ask(sends, "POST", "/v1/completions", body(there))
        assert status == 400 and "for a kv_consumer" in answer["error"]["message"]


def test_behind_a_proxy_long_prompts_cross_and_the_next_turn_stays(two_layers):
    asked = {"model": "tiny-qwen3", "max_tokens": 5, "temperature": 0}
    with server(two_layers, SENDS) as sends, server(two_layers, READS) as reads:
        roles = (PREFILL, sends), (DECODE, reads)
        engines = [ProxiedEngine(role, f"127.0.0.1:{one.port}") for role, one in roles]
        with BackgroundServer(create_proxy_app(ServerOptions(), engines, 64)) as proxy:
            until(lambda: all(engine.is_ready for engine in engines))
            with client_of(proxy) as client:
                stream = client.completions.create(**asked, prompt=PROMPTS[4], stream=True)
                first = "".join(chunk.choices[0].text for chunk in stream)
                second = client.completions.create(**asked, prompt=[*PROMPTS[4], 7, 8]).choices[0].text
        for prompt, text in ((PROMPTS[4], first), ([*PROMPTS[4], 7, 8], second)):
            alone = ask(sends, "POST", "/v1/completions", {**asked, "prompt": prompt})[2]
            assert alone["choices"][0]["text"] == text
        assert f"{RECEIVED} 89.0" in exchange(reads, "GET", "/metrics")[2]
