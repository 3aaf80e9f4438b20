"""What keeps a job from training, in a sentence, read off its pods. Pure."""

from __future__ import annotations

from regroup_operator.failures import IMAGE_REASONS
from regroup_operator.observed import Observed


def image_problem(observed: Observed) -> str:
    """A pod whose image cannot be had; empty when there is none."""
    pod = next((pod for pod in observed.pods if pod.alive and pod.waiting_reason in IMAGE_REASONS), None)
    return f"pod {pod.name} cannot get image {pod.image}: {pod.waiting_reason}: {pod.waiting_message}" if pod else ""


def coordinator_problem(observed: Observed) -> str:
    """A coordinator that ends as often as it is started; empty when it does not."""
    pod = next((pod for pod in observed.coordinators if pod.alive and pod.waiting_reason == "CrashLoopBackOff"), None)
    return f"coordinator {pod.name} keeps failing: {pod.exit_message.strip()}" if pod else ""


def unschedulable(observed: Observed) -> str:
    """A pod that the scheduler cannot place; empty when there is none."""
    pod = next((pod for pod in observed.pods if pod.alive and pod.unschedulable), None)
    return f"pod {pod.name} cannot be placed: {pod.unschedulable}" if pod else ""
