"""A server that streams words, for clients that measure."""

import asyncio
import json

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from benchmarks.serving.client import ENDPOINTS

PIECE = 0.002  # seconds per piece of the stand-in server
# How a stream may end that is no answer, by the name of the model.
BROKEN = {
    "cut": "data: {",
    "ends early": "",
    "a list": "data: [1, 2]\n\n",
    "no delta": 'data: {"choices": [{"index": 0}]}\n\n',
    "usage": 'data: {"choices": [], "usage": {"prompt_tokens": "many", "completion_tokens": []}}\n\n',
    "no JSON": "data: {]\n\n",
    "an error": 'data: {"error": "gone"}\n\n',
}


def failure(code: int, says: str) -> JSONResponse:
    return JSONResponse({"error": {"message": says}}, status_code=code)


class StandIn:
    """A server that streams a word per token, and remembers what it was asked."""

    def __init__(self):
        self.bodies, self.heads, self.paths = [], [], []
        self.open = self.most_open = 0
        self.models: list[str] | Response = ["stand-in"]
        self.app = FastAPI()
        for path in ENDPOINTS:
            self.app.post(path)(self.complete)
        self.app.get("/v1/models")(self.list_models)

    async def list_models(self, request: Request):
        if request.headers["authorization"] == "Bearer wrong":
            return failure(401, "a key is needed")
        if isinstance(self.models, Response):
            return self.models
        return {"object": "list", "data": [{"id": each, "object": "model"} for each in self.models]}

    async def complete(self, request: Request):
        self.bodies.append(body := await request.json())
        self.heads.append(request.headers)
        self.paths.append(request.url.path)
        if body["model"] == "full":
            return failure(429, "the queue is full")
        answer = self.stream(body, "chat" in request.url.path)
        return StreamingResponse(answer, media_type="text/event-stream")

    async def stream(self, body: dict, is_chat: bool):
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        model, text = body["model"], {"delta": {"content": " x"}} if is_chat else {"text": " x"}
        for number in range(body["max_tokens"]):
            await asyncio.sleep(PIECE)
            is_thought = number < 2 and model.startswith("reasoning")
            yield event(choices=[{"index": 0, **({"delta": {model: " x"}} if is_thought else text)}])
        self.open -= 1
        if model in BROKEN:
            yield BROKEN[model]
            if model == "cut":
                raise RuntimeError("the connection is cut")
            return
        if model == "ends":
            nothing = {"delta": {"content": ""}} if is_chat else {"text": ""}
            yield event(choices=[{"index": 0, **nothing, "finish_reason": "stop"}])
        usage = {"prompt_tokens": 11, "completion_tokens": body["max_tokens"], "total_tokens": 12}
        yield event(choices=None if is_chat else [], usage=usage)
        yield "data: [DONE]\n\n"


def event(**values) -> str:
    return f"data: {json.dumps({'id': '1', 'object': 'x', 'created': 0, 'model': 'm', **values})}\n\n"
