"""The device of this rank in torch. The job has chosen it (device/device.h)."""

import re
import sys
from typing import Any

from .errors import UsageError
from .handles import warn

_OLDEST = (2, 10)  # version of torch
_USE_THE_CPU = "or compute on the CPU with CUDA_VISIBLE_DEVICES=-1"


def require_torch() -> None:
    """Checks the version of torch, if it is loaded."""
    version = str(getattr(sys.modules.get("torch"), "__version__", ""))
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and tuple(map(int, found.groups())) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise UsageError(f'torch: too old (got {version}, expected {oldest} or newer); install another: pip install "torch>={oldest}"')


def facts() -> dict[str, str]:
    """Returns versions that must be equal on all ranks."""
    require_torch()
    torch = sys.modules.get("torch")
    return {"torch (install one version on all hosts)": str(torch.__version__)} if torch else {}


def require_usable(job: dict[str, Any]) -> None:
    """Checks that torch and the engine have the same kind of device. Ranks with equal installations raise the same error.

    Args:
        job: facts of the job.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    if not job["device"].startswith("cuda"):
        if not job["cuda"] and torch.cuda.is_available():
            built = "cleave: built without CUDA, but torch finds a GPU"
            raise UsageError(f"{built}; install the CUDA wheel (scripts/build_wheel.sh --cuda) or build the preset cuda, {_USE_THE_CPU}")
        return
    if torch.version.cuda is None:
        built = f"torch: built without CUDA (got {torch.__version__}), but the engine computes on {job['device']}"
        raise UsageError(f"{built}; install a torch with CUDA, {_USE_THE_CPU}")
    visible, index = torch.cuda.device_count(), int(job["device"].partition(":")[2] or 0)
    if index >= visible:
        found = f"torch: finds {visible} GPUs (built for CUDA {torch.version.cuda}), but the engine computes on {job['device']}"
        raise UsageError(
            f"{found}; install a torch for the CUDA version of the driver (nvidia-smi shows it), set CUDA_VISIBLE_DEVICES only before "
            f"torch starts CUDA, {_USE_THE_CPU}"
        )
    major, minor = job["cuda"] // 1000, job["cuda"] % 1000 // 10
    if int(torch.version.cuda.partition(".")[0]) != major and job["rank"] == 0:
        warn(
            f"warning: torch: built for CUDA {torch.version.cuda}, this build of cleave for CUDA {major}.{minor}; not tested together, and "
            f"cleave finds no cuBLASLt in torch's packages; install a torch for CUDA {major}",
            sys.stderr,
        )


def adopt(device: str) -> Any:
    """Returns the torch device of this rank. A GPU becomes torch's current device, for scripts that say "cuda" or .cuda()."""
    import torch

    chosen = torch.device(device)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return chosen
