"""The job of this process: one for the life of the process, and torch's process group for the same ranks."""

import atexit
import datetime
import faulthandler
import ipaddress
import os
import signal
import socket
import sys
from types import TracebackType
from typing import Any

from . import devices, native
from .errors import CleaveError, action_for

_DEADLINE_S = 600.0
_IN_TORCH = {"world": "WORLD_SIZE", "local_size": "LOCAL_WORLD_SIZE"}  # variables that torch scripts read, set if no launcher did

_job: native.Job | None = None
_owner = 0  # process that opened the job; a forked child is not a rank


def current(timeout_s: float = _DEADLINE_S) -> native.Job:
    """Returns the job. The first call reads the environment and connects the ranks, within timeout_s seconds; it is collective."""
    global _job, _owner
    if _job is not None:
        if _owner != os.getpid():
            raise CleaveError("engine: not usable in a process that was forked from a rank, such as a DataLoader worker")
        return _job
    options = {"port_is_taken": _torch_has_ranks(), "secret_by_pmi": "mpi4py" not in sys.modules, "facts": devices.facts()}
    _job, _owner = native.Job(**options), os.getpid()
    for name in ("CLEAVE_TOKEN", "CLEAVE_MEETING_PORT", "CLEAVE_MEETING_FD"):
        os.environ.pop(name, None)  # the job has them; children must not inherit them
    _record_stacks(_job.facts())
    atexit.register(_end)
    _job.connect(timeout_s)
    for name in ("rank", "world", "local_rank", "local_size", "master_addr", "master_port"):
        os.environ.setdefault(_IN_TORCH.get(name, name.upper()), str(_job.facts()[name]))
    devices.require_usable(_job.facts())
    return _job


def _record_stacks(facts: dict[str, Any]) -> None:
    """Lets faulthandler write Python stacks into the flight record of this rank: on SIGQUIT and before a crash ends the process."""
    descriptor = int(facts["python_stacks"])
    if descriptor < 0:
        return
    if facts["records_on_quit"]:
        faulthandler.register(signal.SIGQUIT, file=descriptor, all_threads=True, chain=True)
    if not faulthandler.is_enabled():
        faulthandler.enable(file=descriptor, all_threads=True)


# Engines with background saves in creation order, which is the same on all ranks. A job that ends without failure first finishes these.
engines: list[native.NativeEngine] = []
reports: list[Any] = []  # MonitorMaster of each engine that reports at the end
planned: tuple[int, int] | None = None  # while a plan creates a module: the rank and world size to plan for


_catches_signals = False


def catch_signals() -> None:
    """Catches SIGTERM, SIGINT and SIGUSR1 from the first call on; they request a stop."""
    global _catches_signals
    if not _catches_signals:
        current().catch_signals()
        _catches_signals = True


def rank() -> int:
    """Returns the rank of this process."""
    return planned[0] if planned else int(current().facts()["rank"])


def world_size() -> int:
    """Returns the number of ranks of the job."""
    return planned[1] if planned else int(current().facts()["world"])


def broadcast(tensor: Any, root: int) -> None:
    """Overwrites a contiguous tensor in host memory with the tensor of the root. Collective."""
    current().broadcast(tensor.data_ptr(), tensor.numel() * tensor.element_size(), root)


def texts_of_all(text: str) -> list[str]:
    """Returns the texts of all ranks in rank order. Collective."""
    import torch

    own = text.encode()
    sizes = current().sum([float(len(own)) if root == rank() else 0.0 for root in range(world_size())])
    texts = []
    for root, size in enumerate(map(int, sizes)):
        data = bytearray(own if root == rank() else size)
        broadcast(torch.frombuffer(data, dtype=torch.uint8), root)
        texts.append(data.decode())
    return texts


def _torch_has_ranks() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


_failure: str | None = None  # failure of this rank, sent to the others so that they stop waiting
_exit_code = 0  # exit code of the command line for the failure


def _end() -> None:
    _leave()
    if _exit_code and _owner == os.getpid():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_code)


def _watch_exceptions() -> None:
    """Ends a process after an exception with its exit code, and the job, if there is one, with its message."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _failure, _exit_code
        if action := action_for(error):
            error.args = (f"{error}{action}",)
        _failure = _failure or f"{kind.__name__}: {error}"
        before(kind, error, trace)
        if isinstance(error, CleaveError):
            _exit_code = error.exit_code
        if _job is None and _exit_code:
            raise SystemExit(_exit_code)  # Python ends with it, as after sys.exit
        _leave()

    sys.excepthook = hook


_watch_exceptions()
devices.require_torch()  # modules of the package import torch before this one


def _leave() -> None:
    global _job
    if _job is None or _owner != os.getpid():
        return
    job, _job = _job, None
    try:
        for engine in () if _failure else engines:
            engine.finish_save()
        for monitor in () if _failure else reports:
            monitor.end()
        interrupted = (_failure or "").startswith(KeyboardInterrupt.__name__)
        job.close(_failure, _exit_code or (128 + signal.SIGINT if interrupted else 1))
    except CleaveError as error:
        print(f"warning: end of the job: {error}", file=sys.stderr)
    if _torch_has_ranks() and _failure is None:
        sys.modules["torch.distributed"].destroy_process_group()


def init_torch(backend: str | None = None, timeout: datetime.timedelta | None = None) -> None:
    """Creates torch's process group with the same ranks if there is none. Collective."""
    import torch.distributed as dist

    job = current(timeout.total_seconds() if timeout else _DEADLINE_S)
    if not dist.is_available() or dist.is_initialized():
        return
    facts = job.facts()
    wait = timeout or datetime.timedelta(seconds=_DEADLINE_S)
    store: Any = dist.HashStore() if facts["world"] == 1 else _store(facts, wait)
    device = str(facts["device"])
    if backend in (None, "ccl", "mpi") or (backend == "nccl" and not device.startswith("cuda")):
        backend = "nccl" if device.startswith("cuda") else "gloo"
    devices.adopt(device)
    dist.init_process_group(backend, store=store, rank=facts["rank"], world_size=facts["world"], timeout=wait)


def _store(facts: dict[str, Any], wait: datetime.timedelta) -> Any:
    """Returns a torch store on a free port of the address where the ranks met. It listens on no other address and has no authentication."""
    import torch
    import torch.distributed as dist

    world, first = facts["world"], facts["rank"] == 0
    host = _loopback(facts["master_addr"]) if facts["local_size"] == world else facts["master_addr"]
    store: Any = None
    if first:
        with _listener(host) as listener:
            port = listener.getsockname()[1]
            store = dist.TCPStore(host, port, world, True, timeout=wait, wait_for_workers=False, master_listen_fd=os.dup(listener.fileno()))
    chosen = torch.tensor([store.port if first else 0])
    broadcast(chosen, 0)
    return store or dist.TCPStore(host, int(chosen), world, False, timeout=wait, wait_for_workers=False)


def _loopback(host: str) -> str:
    """Returns the host if it is a loopback address, else 127.0.0.1."""
    try:
        return host if ipaddress.ip_address(host).is_loopback else "127.0.0.1"
    except ValueError:
        return "127.0.0.1"


def _listener(host: str) -> socket.socket:
    """Returns a socket that listens on the host's address, or on all addresses if the host is a name or its address is not local (NAT)."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        return socket.create_server((host, 0), family=family)
    except (ValueError, OSError):
        both = socket.has_dualstack_ipv6()
        return socket.create_server(("", 0), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both)
