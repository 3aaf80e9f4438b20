"""Drawn pod templates: what our validation makes of each, and what the API server says of the pods
of those that it takes.
"""

from __future__ import annotations

import json
from random import Random

from bench.fuzz.findings import Findings
from bench.fuzz.judgement import names_field_and_value
from tests.support.hostile_jobs import draw_ordinary_template, draw_template
from tests.support.kube_api import Api, Json, Namespace
from tests.support.offline_operator import NAMESPACE, pods_of, problem_of
from tests.support.operator_simulation import make_torchrun_spec
from tests.support.specs import SMALLEST

EACH_OF_TORCHRUN = 4
"""One in so many templates is judged for torchrun, too, if it is an ordinary one."""


class DrawnTemplates:
    """Judges them as the operator does, by the code that reads and renders a spec, in this process.
    The pods are created as the operator creates them, but as a dry run, each that differs from all
    others once. A quarter of the drawn jobs take a template through the operator, too: all of
    launcher `regroup`.
    """

    def __init__(self, api: Api, findings: Findings) -> None:
        self._namespace = Namespace.make(api, NAMESPACE)
        self._findings = findings
        self._sent: set[str] = set()

    def judge(self, seed: int, count: int) -> None:
        """Judge so many, and note what is wrong."""
        random = Random(seed)
        for number in range(count):
            draw = random.choice((draw_template, draw_ordinary_template))
            template = draw(random)
            self._findings.templates += 1
            self._judge_one({**SMALLEST, "template": template})
            if draw is draw_ordinary_template and number % EACH_OF_TORCHRUN == 0:
                self._judge_one(make_torchrun_spec(template=_with_script(template)))

    def _judge_one(self, spec: Json) -> None:
        try:
            problem = problem_of(spec)
            pods = () if problem else pods_of(spec)
        except Exception as error:
            self._findings.errors.append(f"{type(error).__name__}: {error}: {json.dumps(spec)}")
            return
        if problem and not names_field_and_value(problem, spec):
            self._findings.unnamed.append(problem)
        for pod in pods:
            self._send(json.dumps(pod), spec["template"])

    def _send(self, pod: str, template: Json) -> None:
        if pod in self._sent:
            return
        self._sent.add(pod)
        self._findings.dry_runs += 1
        answer = self._namespace.api.request("POST", self._namespace.core("pods?dryRun=All"), pod)
        if answer.status != 201:
            self._findings.note_refusal(f"{answer.status} {answer.message}", template)


def _with_script(template: Json) -> Json:
    """An ordinary template that runs one where it has no command: torchrun has no other trainer."""
    main, *others = template["spec"]["containers"]
    script = {"command": ["python", "train.py"], **main}
    return {**template, "spec": {**template["spec"], "containers": [script, *others]}}
