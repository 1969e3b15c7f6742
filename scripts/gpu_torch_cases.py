"""Cases of scripts/gpu_python.py that use torch.cuda as scripts do: devices, graphs, autocast, compiled modules, pinned memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

STEPS = 3
ADAMW = {"lr": 1e-2, "eps": 1e-3, "weight_decay": 0.1}


class TorchCases:
    """The cases, with the models and comparisons of gpu_python.py."""

    def __init__(self, tools: Any) -> None:
        self.t = tools
        self.on_gpu = tools.DEVICE == "cuda"

    def all(self) -> list[Callable[[], None]]:
        """Returns the cases, most valuable first."""
        every = [self.model_on_the_gpu, self.captured_graphs, self.streams_in_turns, self.autocast, self.pinned_loader, self.two_engines]
        return [*every, self.checkpointed_attention, self.compiled, self.limited_memory, *([self.bitsandbytes] if self.on_gpu else [])]

    def trained(
        self, make: Callable[[], Any], ds_config: dict[str, Any] | None, call: Any = None, around: Any = contextlib.nullcontext
    ) -> Any:
        """Returns losses and weights of a training: of the engine, or of torch alone without a configuration.

        Args:
            make: returns a module of `kind` mlp.
            call: replaces the call of the module.
            around: context of each forward.
        """
        torch, cleave = self.t.torch_and_engine()
        module = make()
        optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], **ADAMW)
        engine = None
        if ds_config is None:
            module.to(self.t.DEVICE)
        else:
            engine = cleave.initialize(model=module, optimizer=optimizer, config={**ds_config, "gradient_accumulation_steps": 1})[0]
        losses = []
        for step in range(STEPS):
            x, y = self.t.batch("mlp", step, 0, 0, self.t.DEVICE)
            with around():
                loss = torch.nn.functional.cross_entropy((call or (lambda m, x: m(x)))(engine or module, x).float(), y)
            if engine is None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            else:
                engine.backward(loss)
                engine.step()
            losses.append(loss.item())
        named = [name for name, p in module.named_parameters() if p.requires_grad]
        found = {n: engine.parameters_of(n) if engine else module.get_parameter(n).detach().float().cpu() for n in named}
        if engine is not None:
            engine.destroy()
        return losses, found

    def close(self, make: Callable[[], Any], stage: int = 3, bound: float = 2e-5, **more: Any) -> None:
        """Compares trainings of the engine and of torch alone."""
        self.t.compare(self.trained(make, self.config(stage), **more), self.trained(make, None, **more), bound)

    def config(self, stage: int) -> dict[str, Any]:
        made: dict[str, Any] = self.t.config(stage)
        made.pop("optimizer")
        return made

    def model_on_the_gpu(self) -> None:
        """A model that is on the GPU already: the engine takes its values over and its memory is free."""
        torch, cleave = self.t.torch_and_engine()
        self.close(lambda: self.t.mlp().to(self.t.DEVICE))
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).to(self.t.DEVICE)
        size = sum(p.nbytes for p in model.parameters())
        before = torch.cuda.memory_allocated() if self.on_gpu else 0
        engine = cleave.initialize(model=model, model_parameters=model.parameters(), config=self.t.config(3))[0]
        freed = before - torch.cuda.memory_allocated() if self.on_gpu else size
        self.t.note(f"{freed} of {size} bytes of torch's memory are free after initialize, on {engine.device}")
        assert freed > 0.9 * size, f"{freed} of {size} bytes were freed"
        engine.destroy()

    def captured_graphs(self) -> None:
        """A CUDA graph of the script's own code between forwards, and an engine that is called in a capture."""
        torch, cleave = self.t.torch_and_engine()

        def scaled(x: Any) -> Any:
            return torch.tanh(x) * 2

        def with_graph() -> Any:
            fixed = torch.zeros(self.t.SAMPLES, 48, device=self.t.DEVICE)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                scaled(fixed)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = scaled(fixed)

            def replayed(module: Any, x: Any) -> Any:
                fixed.copy_(x)
                graph.replay()
                return module(out.clone())

            return replayed

        want = self.trained(self.t.mlp, None, call=lambda module, x: module(scaled(x)))
        if not self.on_gpu:
            self.t.compare(self.trained(self.t.mlp, self.config(3), call=lambda module, x: module(scaled(x))), want)
            return
        self.t.compare(self.trained(self.t.mlp, self.config(3), call=with_graph()), want)
        with self.t.engine_of("mlp", self.t.config(3)) as engine:
            x = self.t.batch("mlp", 0, 0, 0, engine.device)[0]
            said = ""
            try:
                with torch.cuda.graph(torch.cuda.CUDAGraph()):
                    engine(x)
            except cleave.CleaveError as error:
                said = str(error)
            assert "captures a graph" in said, said
            losses = self.t.steps(engine, "mlp")
        assert all(loss == loss for loss in losses), losses

    def streams_in_turns(self) -> None:
        """A script that changes its current stream for each forward."""
        torch, _ = self.t.torch_and_engine()
        streams = [torch.cuda.Stream() for _ in range(3)] if self.on_gpu else []
        turns = iter(range(10**6))

        def call(module: Any, x: Any) -> Any:
            if not streams:
                return module(x)
            stream, now = streams[next(turns) % 3], torch.cuda.current_stream()
            stream.wait_stream(now)
            with torch.cuda.stream(stream):
                out = module(x)
            now.wait_stream(stream)
            return out

        self.close(self.t.mlp, call=call)

    def autocast(self) -> None:
        """torch.autocast in bf16 around the forward of an fp32 engine."""
        torch, _ = self.t.torch_and_engine()
        self.close(self.t.mlp, bound=self.t.CLOSE_16, around=lambda: torch.autocast(self.t.DEVICE, dtype=torch.bfloat16))

    def pinned_loader(self) -> None:
        """A loader with pinned memory and a worker, and copies that do not block."""
        torch, cleave = self.t.torch_and_engine()
        rows = [(torch.randn(48, generator=torch.Generator().manual_seed(i)), i % self.t.VOCABULARY) for i in range(16)]
        model = self.t.mlp()
        engine = cleave.initialize(model=model, model_parameters=model.parameters(), config=self.t.config(2), training_data=rows)[0]
        loader = torch.utils.data.DataLoader(rows, batch_size=self.t.SAMPLES, pin_memory=self.on_gpu, num_workers=1)
        plain = self.t.mlp().to(self.t.DEVICE)
        worst = 0.0
        for x, _ in loader:
            assert x.is_pinned() == self.on_gpu
            there = x.to(engine.device, non_blocking=True)
            with torch.no_grad():
                worst = max(worst, (engine(there) - plain(x.to(self.t.DEVICE))).abs().max().item())
        self.t.note(f"largest difference of outputs {worst:.1e}")
        assert worst <= self.t.CLOSE, worst
        engine.destroy()

    def two_engines(self) -> None:
        """Two engines on one GPU that train in turns, as alone."""
        alone = {}
        for kind in ("mlp", "gpt2"):
            with self.t.engine_of(kind, self.t.config(3)) as engine:
                alone[kind] = self.t.steps(engine, kind)
        got: dict[str, list[float]] = {"mlp": [], "gpt2": []}
        with self.t.engine_of("mlp", self.t.config(3)) as first, self.t.engine_of("gpt2", self.t.config(3)) as second:
            for step in range(self.t.STEPS):
                got["mlp"] += self.t.steps(first, "mlp", step, step + 1)
                got["gpt2"] += self.t.steps(second, "gpt2", step, step + 1)
        assert got == alone, f"in turns {got}; alone {alone}"

    def checkpointed_attention(self) -> None:
        """Scaled dot product attention in both kinds of gradient checkpointing."""
        torch, _ = self.t.torch_and_engine()
        nn, functional = torch.nn, torch.nn.functional

        class Attention(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.split, self.join = nn.Linear(48, 144), nn.Linear(48, 48)

            def forward(self, x: Any) -> Any:
                q, k, v = self.split(x).view(1, x.shape[0], 3, 4, 12).permute(2, 0, 3, 1, 4)
                mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                return x + self.join(mixed.transpose(1, 2).reshape(x.shape))

        for reentrant in (False, True):

            class Model(nn.Module):
                reenters = reentrant

                def __init__(self) -> None:
                    super().__init__()
                    self.first, self.blocks = nn.Linear(48, 48), nn.ModuleList(Attention() for _ in range(2))

                def forward(self, x: Any) -> Any:
                    x = self.first(x)
                    for block in self.blocks:
                        x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.reenters)
                    return x

            def make(kind: Any = Model) -> Any:
                torch.manual_seed(0)
                return nn.Sequential(kind(), nn.Linear(48, self.t.VOCABULARY))

            self.close(make)

    def compiled(self) -> None:
        """torch.compile of the module before initialize and by engine.compile."""
        torch, _ = self.t.torch_and_engine()
        backend = "inductor" if self.on_gpu else "eager"
        self.t.compare(
            self.trained(lambda: compiled_in_place(self.t.mlp(), backend), self.config(3)), self.trained(self.t.mlp, None), self.t.CLOSE
        )
        torch._dynamo.reset()

    def limited_memory(self) -> None:
        """torch.cuda.set_per_process_memory_fraction limits torch, not the engine."""
        torch, cleave = self.t.torch_and_engine()
        if self.on_gpu:
            torch.cuda.set_per_process_memory_fraction(0.005)
        try:
            self.close(self.t.mlp, 0)
            size = int(0.007 * torch.cuda.get_device_properties(0).total_memory) // (4 * 4096) if self.on_gpu else 8
            model = torch.nn.Linear(4096, size)  # larger than torch's share
            cleave.initialize(model=model, model_parameters=model.parameters(), config=self.t.config(0))[0].destroy()
        finally:
            if self.on_gpu:
                torch.cuda.set_per_process_memory_fraction(1.0)

    def bitsandbytes(self) -> None:
        """Frozen 4-bit layers with adapters, in two storage types, at stage 3."""
        torch, _ = self.t.torch_and_engine()
        try:
            import bitsandbytes
        except ImportError as error:
            raise self.t.Skip(f"bitsandbytes cannot be imported: {error}") from error
        for storage in (torch.uint8, torch.bfloat16):

            def make(storage: Any = storage) -> Any:
                torch.manual_seed(0)
                frozen = bitsandbytes.nn.Linear4bit(48, 64, quant_type="nf4", quant_storage=storage)
                frozen.requires_grad_(False)
                return torch.nn.Sequential(frozen.to("cuda"), torch.nn.Linear(64, self.t.VOCABULARY).to("cuda"))

            self.close(make, bound=self.t.CLOSE_16)


def compiled_in_place(module: Any, backend: str) -> Any:
    """Returns the module, which compiles at its first call."""
    module.compile(backend=backend)
    return module
