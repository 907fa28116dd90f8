"""The two deployments on Ray Serve: engines, of which there are several, and the HTTP side in front of them."""

from collections.abc import Callable

from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_extensions.llm import LLM

from ..openai_api.server_options import ServerOptions
from ..server import app_around
from .engine_replica import EngineReplica
from .replica_metrics import ReplicaMetrics
from .replica_options import ReplicaOptions
from .replicated_service import ReplicatedService
from .token_router import TokenRouter

APP, HTTP, ENGINE = "tiny-llm", "http", "engine"
HEALTH_SECONDS = 2.0  # between two health checks; a dead replica is found at once, a dead engine by these
QUIET = {"log_level": "WARNING", "enable_access_log": False}
MARGIN = 5.0  # seconds beyond the drain of the server, for what has ended to be sent


@serve.deployment(name=ENGINE, health_check_period_s=HEALTH_SECONDS, logging_config=QUIET)
class EngineDeployment(EngineReplica):
    """A replica: ready when its model is loaded."""

    async def __init__(self, open_llm: Callable[[], LLM], options: ServerOptions):
        super().__init__(open_llm, options)
        await self.open()

    async def __del__(self):
        await self.close()


def http_deployment(model: str, options: ServerOptions) -> serve.Deployment:
    """The HTTP side: the app of `server.py`, whose requests go to the engines by a handle.

    It needs next to no arithmetic, and so reserves no CPU.
    """

    def build() -> FastAPI:
        """Made in the replica, where Ray runs its lifespan: an app cannot be pickled."""
        metrics = ReplicaMetrics(options.model_name)

        def make_service(app: FastAPI) -> ReplicatedService:
            app_name = serve.get_replica_context().app_name
            engine: DeploymentHandle = serve.get_deployment_handle(ENGINE, app_name=app_name)
            generate = engine.options(stream=True).generate.remote
            facts = engine.facts.remote
            return ReplicatedService(
                options, load_tokenizer(model), facts, generate, (RayActorError,), metrics
            )

        return app_around(make_service, options, metrics, sends_ids=False)  # Ray's proxy does

    @serve.ingress(build)
    class HttpSide:
        def __init__(self, engine: DeploymentHandle):
            """Ray starts the engines because this has their handle; `make_service` asks for its own."""

        async def drain(self) -> None:
            """See `ReplicatedService.drain`; called before Ray takes the path away."""
            await self.app.state.service.drain()  # the class that Ray makes of this one has the app

    settings = {"max_ongoing_requests": 2**16, "ray_actor_options": {"num_cpus": 0}}
    return serve.deployment(name=HTTP, logging_config=QUIET, graceful_shutdown_wait_loop_s=0.1, **settings)(
        HttpSide
    )


def application(
    open_llm: Callable[[], LLM], model: str, options: ServerOptions, replicas: ReplicaOptions
) -> serve.Application:
    """The application for `serve.run`.

    Args:
        open_llm: makes the `LLM` of a replica; called there, on the engine's thread. It must be picklable.
        model: whose tokenizer the HTTP side loads.
        replicas: how many, on what.
    """
    router = RequestRouterConfig(
        request_router_class=TokenRouter,
        request_router_kwargs={"solution": options.solution, "block_size": replicas.block_size},
    )
    engine = EngineDeployment.options(
        **replicas.scaling,
        max_ongoing_requests=replicas.max_ongoing_requests,
        ray_actor_options=replicas.actor_options,
        graceful_shutdown_timeout_s=options.drain_timeout + MARGIN,
        request_router_config=router,
    )
    http = http_deployment(model, options)
    return http.options(graceful_shutdown_timeout_s=options.drain_timeout + MARGIN).bind(
        engine.bind(open_llm, options)
    )
