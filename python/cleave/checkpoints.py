"""Checkpoints of a stepped engine: the state of the script in addition to the engine's records, and how training resumes."""

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from . import job as jobs
from . import native
from .errors import STOPPED, CheckpointError, NotBuilt, StepOrderError, UsageError, names_the_call
from .random_states import of_this_rank, random_states, set_random_states
from .saved import Beside, beside, path_from_json
from .schedules import Schedule
from .steps import SteppedModule
from .utils.resumable import ResumableLoader
from .values import from_text, printable, to_text

_OWN_LOADER = "training_data"  # name of the loader that initialize() creates
_OPTIMIZER, _SCHEDULE, _STEPS = 1, 2, 4  # parts to load (CLEAVE_LOAD_ in cleave_c.h)


def _why_empty(folder: str) -> str:
    """Returns why a folder without the file `latest` has no checkpoint to load."""
    if os.path.isdir(folder):
        return "the file 'latest' is missing, so no checkpoint was loaded; select one with tag"
    found = "not a folder" if os.path.exists(folder) else "does not exist"
    return f"{found}, so no checkpoint was loaded; to resume, pass the folder of save_checkpoint"


class SavedModule(SteppedModule):
    """An engine with steps and checkpoints."""

    training_dataloader: Any = None  # training dataloader; DeepSpeedDataLoader, or the argument of set_dataloader
    data_iterator: Any = None  # over training_dataloader, if the engine reads it
    loaded_checkpoint_tag: str | None = None
    _saves_to: tuple[str, Mapping[str, Any] | None] | None = None  # folder and client state of the last save_checkpoint

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._loaders: dict[str, ResumableLoader] = {}  # of register_loader
        self._positions: dict[str, Any] = {}  # loaded, of loaders that are not registered yet
        self._saves_on_stop = bool(self._value("cleave.save_on_stop"))  # if set, the engine catches signals

    def stop_requested(self) -> bool:
        """Returns True on all ranks if SIGTERM, SIGINT or SIGUSR1 asked any rank to stop. Collective.

        Save, then exit with code 75. Signals are caught from the first call on, or from `initialize` with `"cleave": {"save_on_stop":
        true}`. A second signal kills the process.
        """
        if not self._saves_on_stop:
            jobs.catch_signals()
        return self._job.stop_requested()

    def register_loader(self, loader: Any, name: str = "loader") -> ResumableLoader:
        """Returns a loader to iterate over instead of the given one. Checkpoints contain its position.

        After `load_checkpoint`, before or after this call, the first iteration yields the remaining batches of its epoch, as the
        uninterrupted training had them. On another number of ranks, this holds for a DistributedSampler, at the next whole batch of all
        ranks, and for positions that are equal on all ranks; otherwise the epoch starts again.

        Args:
            loader: a torch DataLoader, or a loader with `state_dict` and `load_state_dict`, such as torchdata's StatefulDataLoader.
            name: of the loader in checkpoints; each loader needs its own.

        Raises:
            UsageError: another type of loader.
        """
        self._loaders[name] = registered = loader if isinstance(loader, ResumableLoader) else ResumableLoader(loader)
        if position := self._positions.pop(name, None):
            registered.load_state_dict(position)
        return registered

    def _every_loader(self) -> dict[str, ResumableLoader]:
        own = self.training_dataloader
        return {**({_OWN_LOADER: own} if isinstance(own, ResumableLoader) and own not in self._loaders.values() else {}), **self._loaders}

    def _end_of_step(self) -> None:
        if not self._saves_on_stop or not self.stop_requested():
            return
        if self._saves_to:
            self.save_checkpoint(self._saves_to[0], client_state=self._saves_to[1])
            self._native.finish_save()
        if self.global_rank == 0:
            after = f"after step {self.global_steps}"
            saved = f"saved {self._saves_to[0]} {after}; run the same command again to resume" if self._saves_to else None
            print(f"stop requested: {saved or f'nothing was saved {after}, because the script has not called save_checkpoint'}", flush=True)
        raise SystemExit(STOPPED)

    def _beside(self, client_state: Mapping[str, Any] | None) -> Beside:
        """Returns the state that a checkpoint contains in addition to the engine's records."""
        scheduler = self.lr_scheduler.state_dict() if hasattr(self.lr_scheduler, "state_dict") else None
        slots, bits = [slot for slot in self._units.slots() if not slot.has_bits], self._units.with_bits()
        named = self.module.state_dict(keep_vars=True)
        begun = {_OWN_LOADER: len(self._losses)}
        positions = {name: loader.state_dict(begun.get(name, 0)) for name, loader in self._every_loader().items()}
        of_rank = {"random": random_states(self.device), "loaders": positions}
        return Beside(
            client_state=dict(client_state or {}),
            scheduler=scheduler,
            optimizer=self.optimizer.state_dict() if self.optimizer else None,
            ranks=[from_text(text) for text in jobs.texts_of_all(to_text(of_rank))],
            buffers={name: b.detach().to("cpu") for name, b in self.module.named_buffers() if b.numel() and name in named},
            counters={"global_samples": self.global_samples},
            shared=self._units.other_names(self.module),
            frozen=[slot.name for slot in slots if not slot.trains],
            shapes={slot.name: list(slot.whole) for slot in slots if not 1 <= len(slot.whole) <= 4},
            outside=self._units.outside,
            bytes={name: (slot.parameter.dtype, slot.shape) for name, slot in bits.items()},
        )

    @names_the_call
    def save_checkpoint(
        self,
        save_dir: str,
        tag: str | None = None,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Writes the checkpoint SAVE_DIR/TAG from all ranks, in the format of `cleave train`. Collective.

        Args:
            save_dir: folder of checkpoints; created if missing. If it differs between ranks, that of rank 0 is used, with a warning.
            tag: name of the checkpoint (default: `global_stepN`). If ranks give different ones, `checkpoint.tag_validation` decides.
            client_state: values of the script, saved as JSON. docs/python.md lists the supported types.
            save_latest: accepted; the file `latest` is always written.
            exclude_frozen_parameters: accepted; frozen parameters are always saved.

        Returns:
            True. Failures raise.

        Raises:
            UsageError: empty folder, or a value in `client_state` that cannot be saved.
            StepOrderError: called between the last backward of a step and `engine.step()`, or without an optimizer.
            CheckpointError: the folder cannot be written.
        """
        self._require_training("save_checkpoint")
        if not save_dir:
            raise UsageError(f"save_checkpoint: wrong folder (got {save_dir!r}, expected a path)")
        self._leave_failed_backward()
        self._require_no_update_under_way()
        self._structure.require_known(self._units, self._grouped)
        self._residency.require_placeholders(reads=True)
        name = self._one_tag(str(tag or f"global_step{self.global_steps}"))
        self._saves_to = os.fspath(save_dir), client_state
        folder = self._folder_of_all(os.fspath(save_dir))
        self._native.save_checkpoint(folder, name, json.dumps(self._beside(client_state).packed()))
        return True

    def _folder_of_all(self, folder: str) -> str:
        """Returns the folder of rank 0, or of this rank if it cannot see that one. A script may name folders by the time. Collective."""
        folders = [json.loads(text) for text in jobs.texts_of_all(json.dumps(folder))]
        other = next((rank for rank, each in enumerate(folders) if each != folders[0]), None)
        if other is None:
            return folder
        if self.global_rank == 0:
            differs = f"the folder differs between ranks (rank 0: {folder}, rank {other}: {folders[other]})"
            native.warn(f"warning: save_checkpoint: {differs}; ranks save to that of rank 0")
            with contextlib.suppress(OSError):  # the save reports it
                os.makedirs(folder, exist_ok=True)
        jobs.current().sum([0.0])  # after rank 0 has made its folder
        return folders[0] if os.path.isdir(folders[0]) else folder

    def _one_tag(self, tag: str) -> str:
        """Returns the tag of the first rank, unless `checkpoint.tag_validation` makes a difference an error. Collective."""
        mode = str(self._value("checkpoint.tag_validation")).lower()
        if mode == "fail" or self.world_size == 1:
            return tag
        first, *others = jobs.texts_of_all(tag)
        if mode == "warn" and any(other != first for other in others) and self.global_rank == 0:
            native.warn(f"warning: save_checkpoint: the tag differs between ranks; saving {first}, the tag of rank 0")
        return first

    def _require_no_update_under_way(self) -> None:
        """Requires that no unit was updated in this step, which may happen as early as its last backward.

        Gradients of earlier micro-batches are not part of a checkpoint; the first rank prints a warning.
        """
        if self._in_step and self._has_gradients and self.is_gradient_accumulation_boundary():
            raise StepOrderError(
                "save_checkpoint: called between the last backward of a step and engine.step(); call it after engine.step()"
            )
        if self._losses and self.global_rank == 0:
            micros = f"{len(self._losses)} of {self.gradient_accumulation_steps()} micro-batches"
            native.warn(f"warning: save_checkpoint: called inside a step; the checkpoint has the state before it, without its {micros}")

    @names_the_call
    def load_checkpoint(
        self,
        load_dir: str,
        tag: str | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Any = None,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Restores a checkpoint of Cleave or DeepSpeed, saved with any ZeRO stage and number of ranks. Collective.

        Args:
            load_dir: folder of checkpoints.
            tag: name of the checkpoint (default: the one in the file `latest`).
            load_module_strict: accepted; all parameters must match.
            load_optimizer_states: False leaves the optimizer state and the rates of the groups as they are.
            load_lr_scheduler_states: False leaves the schedule as it is. It sets the rates after the first step; that step uses those of
                the groups.
            load_module_only: True loads weights and buffers only; the number of steps also stays.
            custom_load_fn: not supported.

        Returns:
            The path of the checkpoint and its client state; (None, None) if `tag` is None and the file `latest` is missing.

        Raises:
            CheckpointError: the checkpoint is missing, damaged or of another model.
            StepOrderError: called inside a step.
        """
        if custom_load_fn is not None:
            raise NotBuilt("custom_load_fn: not supported; load your own state from the client state that load_checkpoint returns")
        self._require_no_step("load_checkpoint")
        folder, self.data_iterator = os.fspath(load_dir), None
        if tag is None and not os.path.exists(os.path.join(folder, "latest")):
            if self.global_rank == 0:
                native.warn(f"warning: {folder}: {_why_empty(folder)}")
            return None, None
        self._follow_growth()
        with_optimizer = load_optimizer_states and not load_module_only
        parts = 0 if load_module_only else _STEPS + _OPTIMIZER * load_optimizer_states + _SCHEDULE * load_lr_scheduler_states
        loaded = json.loads(self._native.asked("load_checkpoint", folder, tag or "latest", parts))
        path = path_from_json(loaded["path"])
        kept = beside(loaded["client"], path)
        if not load_module_only:
            self._say_changes(path, loaded["changed"], with_optimizer and kept.optimizer is not None)
            self._restore(kept, with_optimizer, load_lr_scheduler_states)
        if self._outside:
            anew = not with_optimizer or bool(self._native.facts()["optimizer_is_new"])
            self._outside.load((kept.optimizer or {}).get("outside"), anew)
        self._load_buffers(kept.buffers)
        if not load_module_only:
            self._restore_of_ranks(kept, path)
        self.loaded_checkpoint_tag = os.path.basename(path)
        return path, kept.client_state

    def _say_changes(self, path: str, changed: list[str], groups_return: bool) -> None:
        """Warns of settings that differ from the checkpoint's. The optimizer's groups come back with it, as in DeepSpeed."""
        for change in changed if self.global_rank == 0 else ():
            stays = "; the checkpoint's value is used" if groups_return and change.startswith("optimizer.params.") else ""
            native.warn(f"warning: {path}: {change}{stays}")

    def _restore(self, kept: Beside, with_optimizer: bool, with_scheduler: bool) -> None:
        facts = self._native.facts()
        self.global_steps, self.skipped_steps = int(facts["step"]), int(facts["skipped"])
        self.global_samples = kept.counters.get("global_samples", self.global_steps * self.train_batch_size())
        self.micro_steps = self.global_steps * self.gradient_accumulation_steps()
        first = self.optimizer.param_groups[0]["lr"] if self.optimizer else 0.0
        if with_optimizer and self.optimizer and kept.optimizer:
            self.optimizer.load_state_dict(kept.optimizer)
            first = self.optimizer.param_groups[0]["lr"]
        if with_optimizer != with_scheduler and not self._brings_rates:
            self._native.set_next_lr(float(first))
        if with_scheduler and isinstance(self.lr_scheduler, Schedule):
            self.lr_scheduler.follow(self.global_steps - self.skipped_steps)
        elif with_scheduler and self.lr_scheduler is not None and kept.scheduler is not None:
            self.lr_scheduler.load_state_dict(kept.scheduler)

    def _restore_of_ranks(self, kept: Beside, path: str) -> None:
        """Restores random states and positions of loaders. On another number of ranks, only those that are valid for every rank."""
        states, positions = of_this_rank(kept.ranks, self.global_rank, self.world_size)
        positions |= {_OWN_LOADER: kept.loader} if kept.loader else {}
        lost = [f"the random states of {', '.join(names)}"] if (names := [name for name, state in states.items() if state is None]) else []
        lost += [f"the position of loader {name}" for name, position in positions.items() if position is None]
        if lost and self.global_rank == 0:
            ranks = f"{len(kept.ranks)} ranks saved the checkpoint and {self.world_size} load it"
            if names:
                ranks += "; random states matter only if the script draws numbers from them"
            native.warn(f"warning: {path}: {' and '.join(lost)}: differ between ranks and are not restored ({ranks})")
        try:
            set_random_states({name: state for name, state in states.items() if state is not None}, self.device)
            every, self._positions = self._every_loader(), {name: position for name, position in positions.items() if position}
            for name in every.keys() & self._positions.keys():
                every[name].load_state_dict(self._positions.pop(name))
        except Exception as error:
            raise CheckpointError(
                f"{path}: the random states or the position of a loader cannot be restored: {printable(error)}"
            ) from error
