"""Metrics of requests, lists and watches, with the names that client-go gives them."""

from __future__ import annotations

from prometheus_client import Counter

requests = Counter(
    "rest_client_requests", "Requests to the API server; code 0: no answer.", ["method", "code"]
)
lists = Counter(
    "reflector_lists",
    "Lists of all objects: the first one, and those after a watch that could not go on.",
    ["name"],
)
unreadable = Counter(
    "reflector_unreadable_objects",
    "Times that an object could not be read and was skipped; the log names it.",
    ["name"],
)


def count_request(method: str, code: int) -> None:
    """A request to the API server was answered; 0 stands for none."""
    requests.labels(method=method, code=str(code)).inc()


def count_list(resource: str) -> None:
    """All objects of a resource, such as `trainingjobs`, are listed."""
    lists.labels(name=resource).inc()


def count_unreadable(resource: str) -> None:
    """An object is skipped."""
    unreadable.labels(name=resource).inc()
