"""Faults of the control plane, and of the objects that it keeps."""

from __future__ import annotations

from soak.aim import Aim, Missed, Struck, pick, require


def api_server_away(aim: Aim) -> Struck:
    """It is killed, and started again later."""
    aim.site.cluster.stop_api_server()
    if aim.site.api.answers("/readyz"):
        aim.site.cluster.start_api_server()
        raise Missed("the API server answers")
    return Struck("the API server does not answer", aim.site.cluster.start_api_server)


def component_away(aim: Aim, name: str) -> Struck:
    """A program of the control plane is killed, and started again later."""
    processes = aim.site.cluster.processes
    pid = processes.pid(name)
    require(pid is not None, f"{name} does not run")
    processes.kill(name)
    return Struck(f"{name} (process {pid}) is gone", aim.site.cluster.start_api_server)


def object_deleted(aim: Aim, kind: str) -> Struck:
    """The first object of a kind that is the job's."""
    read, where = aim.site.stage.kubectl.read, ("-n", aim.site.namespace)
    ours = ("-l", f"regroup.dev/job={aim.job.name}")
    found = pick(read(kind, *where, *ours)["items"], 0, kind)["metadata"]
    aim.site.stage.kubectl("delete", kind, found["name"], *where)
    uids = {one["metadata"]["uid"] for one in read(kind, *where, *ours)["items"]}
    require(found["uid"] not in uids, f"{kind} {found['name']} is still there")
    return Struck(f"{kind} {found['name']} with UID {found['uid']} is gone")
