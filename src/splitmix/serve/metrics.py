"""What every answer is counted under, and what Prometheus may ask."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from splitmix import __version__

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """Counters of one server; they hold numbers only, never anything of a picture."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        about = Info("splitmix", "What is running.", registry=self.registry)
        about.info({"version": __version__})
        self.requests = Counter(
            "splitmix_requests", "Answers sent, by path and status.", ("path", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "splitmix_prediction_seconds",
            "Time of a prediction in the model, by the width that answered.",
            ("width",),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.attacks = Histogram(
            "splitmix_attack_seconds", "Time of an attack.", buckets=BUCKETS, registry=self.registry
        )
        self.waiting = Gauge(
            "splitmix_predictions_in_progress", "Predictions running or waiting for a thread.", registry=self.registry
        )

    def text(self) -> bytes:
        """All counters in Prometheus' text format."""
        return generate_latest(self.registry)


class Counting:
    """Counts every answer under its route: a path that nobody knows is "other", so that names cannot pile up."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                self.metrics.requests.labels(path=route, status=str(message["status"])).inc()
            await send(message)

        await self.app(scope, receive, counted if scope["type"] == "http" else send)
