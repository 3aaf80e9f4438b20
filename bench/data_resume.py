"""How long a run that resumes far into an epoch waits for its first batch: regroup,
StatefulDataLoader, grain.

    make bench NAME=data_resume [ARGS=--quick]

Each subject resumes from its own saved state at 90 % of an epoch, in a process of its own. All
imports are done before. The clock runs from the saved state to the first batch of 32 shuffled
samples. All subjects compute their samples by the same formula, so that only finding the place is
measured.

`statefuldataloader` shuffles with torch's permutation of all indices. For 10^9 samples, the
permutation does not fit into the 8 GiB of memory that a subject may have.
`statefuldataloader-in-order` does not shuffle, so it does less than the others.

`finished` is 0 where a subject ran out of memory or of time. Out of memory, it has no seconds. Out
of time, its seconds are the limit. The smaller epoch shows what such a subject needs there.
"""

from __future__ import annotations

import json
import subprocess
import sys

from bench.harness import Plan, Values, command

CASES = {"1e9-at-90%": 10**9, "1e6-at-90%": 10**6}
"""Case -> samples of an epoch."""
SUBJECTS = ("regroup", "grain", "statefuldataloader", "statefuldataloader-in-order")
UNITS = {"seconds": "s", "finished": "share"}
LIMIT_SECONDS = 180.0
IMPORT_SECONDS = 60.0
"""Before the clock runs."""


def plan(quick: bool) -> Plan:
    """Both cases five times; a quick run the small one once."""
    cases = tuple(CASES)
    return Plan("data_resume", cases[1:] if quick else cases, SUBJECTS, UNITS, 1 if quick else 5)


def measure(case: str, subject: str) -> Values:
    """Resume once."""
    arguments = [sys.executable, "-m", "bench.data_resume_job", subject, str(CASES[case])]
    try:
        job = subprocess.run(
            arguments,
            check=False,
            capture_output=True,
            text=True,
            timeout=IMPORT_SECONDS + LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"seconds": LIMIT_SECONDS, "finished": 0.0}
    if job.returncode != 0:  # out of memory, or not installed
        return {"finished": 0.0}
    return {"seconds": float(json.loads(job.stdout)["seconds"]), "finished": 1.0}


main = command(plan, measure)

if __name__ == "__main__":
    main()
