"""Day 4.6: prompts are computed by one engine and decoded by another; integers and a given clock only.

`outbox` says what a producer keeps for others, and until when. `incoming` says what a consumer takes, and when it gives
up. `overlap` says when something arrives, and `split_loads` which engines a request is sent to. The copies are made by
`tiny_llm_extensions.kv_transfer`, and by `received_rows` of a port.
"""
