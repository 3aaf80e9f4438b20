"""A function and its arguments as cloudpickle writes them, with what unpickles them elsewhere."""

from __future__ import annotations

import io
import site
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from regroup.training_client import run_pickled
from regroup.training_client.client_errors import CodeError
from regroup_trainer.protocol.extras import missing_extra

EXTRA = "client"
_OURS = ("regroup", "regroup_operator", "regroup_trainer", "cloudpickle")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The same content shall have the same bytes."""


def files_of(function: Callable[..., object], arguments: Mapping[str, object]) -> dict[str, bytes]:
    """The program and what it reads, by name. Raises CodeError, also without cloudpickle."""
    if (missing := missing_extra(EXTRA, ("cloudpickle",))) is not None:
        raise CodeError(missing)
    return {
        "main.py": Path(run_pickled.__file__).read_bytes(),
        "function.pickle": _pickle(function, arguments),
        "cloudpickle.zip": _library(),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}\n".encode(),
    }


def _pickle(function: Callable[..., object], arguments: Mapping[str, object]) -> bytes:
    import cloudpickle

    with _own_modules_by_value():
        try:
            content = cloudpickle.dumps((function, dict(arguments)))
        except Exception as error:  # whatever an object raises that cannot be pickled
            raise CodeError(
                f"the function or its func_args cannot be pickled: {error}: make such an object "
                "within the function"
            ) from error
    return bytes(content)


@contextmanager
def _own_modules_by_value() -> Iterator[None]:
    """Inside, modules that are not installed are sent with the function: an image lacks them."""
    import cloudpickle

    known = set(cloudpickle.list_registry_pickle_by_value())
    own = [module for module in _own_modules() if module.__name__ not in known]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def _own_modules() -> Iterator[ModuleType]:
    folders = [*sysconfig.get_paths().values(), *site.getsitepackages()]
    installed = {Path(path).resolve() for path in (*folders, site.getusersitepackages())}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name.partition(".")[0] in _OURS or name == "__main__":
            continue
        if not installed & set(Path(file).resolve().parents) and module.__name__ == name:
            yield module


def _library() -> bytes:
    """The library, which is pure Python, as an archive that can be imported from."""
    import cloudpickle

    folder, content = Path(cloudpickle.__file__).parent, io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*.py")):
            entry = zipfile.ZipInfo(f"cloudpickle/{file.relative_to(folder)}", _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.read_bytes())
    return content.getvalue()
