"""A ds_config as an object, for scripts that read it before `initialize`."""

from typing import Any

from .. import job as jobs
from ..configuration import configuration_of


class DeepSpeedConfig:
    """The effective values of a ds_config. Collective at the first use in a job.

    Args:
        config: path of a ds_config, its text in base64, or a dictionary.
        mpu: accepted.
        mesh_device: accepted.
    """

    def __init__(self, config: Any, mpu: Any = None, mesh_device: Any = None) -> None:
        read = configuration_of(config)
        read.read(jobs.current())
        self._param_dict, self._values = read.given, read.values
        self.fp16_enabled, self.bfloat16_enabled = (bool(read.section(name).get("enabled")) for name in ("fp16", "bf16"))
        self.zero_optimization_stage = int(read.values.get("zero_optimization.stage") or 0)
        self.gradient_allreduce_op = str(read.values.get("gradient_allreduce_op") or "mean").lower()
        self.zero_enabled = self.zero_optimization_stage > 0
        for name in ("optimizer", "scheduler"):
            setattr(self, f"{name}_name", read.section(name).get("type"))
            setattr(self, f"{name}_params", read.section(name).get("params"))

    def __getattr__(self, name: str) -> Any:
        for values in (self.__dict__.get("_values", {}), self.__dict__.get("_param_dict", {})):
            if name in values:
                return values[name]
        raise AttributeError(f"DeepSpeedConfig: has no {name}; read a key of the file from _param_dict")
