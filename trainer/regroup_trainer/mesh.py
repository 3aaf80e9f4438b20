"""How the ranks of a world are arranged: the only module that factorises the world size."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from regroup_trainer.world import World


def build_mesh(dimension: str, world: World) -> DeviceMesh:
    """All ranks along one dimension: `replicate` (each holds the model) or `shard` (each holds a part)."""
    return init_device_mesh(world.device.type, (world.size,), mesh_dim_names=(dimension,))
