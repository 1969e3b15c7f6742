"""Trainings by libraries that call DeepSpeed, with the calls of the original."""

from __future__ import annotations

import os
from typing import Any

import accelerate
import cleave
import datasets
import peft
import pytorch_lightning
import tokenizers
import torch
import transformers
import trl

VOCABULARY = 61


def small_gpt2(seed: int = 0) -> Any:
    """Returns GPT-2 with two layers and without dropout."""

    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=24, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    return transformers.GPT2LMHeadModel(config)


class Texts(torch.utils.data.Dataset[Any]):
    """Learnable sequences: each token follows from the previous one."""

    def __init__(self, samples: int) -> None:
        draw = torch.Generator().manual_seed(5)
        self.first = torch.randint(0, VOCABULARY, (samples,), generator=draw)

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (self.first[index] + 7 * torch.arange(16)) % VOCABULARY
        return {"input_ids": tokens, "labels": tokens}


def ds_config(stage: int, **more: Any) -> dict[str, Any]:
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True, **more},
    }


def options(stage: int, output: str) -> dict[str, Any]:
    """Returns the options of every trainer. A negative stage: no engine, on one rank with the samples of two."""
    return {
        "output_dir": output,
        "per_device_train_batch_size": 2 if stage >= 0 else 4,
        "learning_rate": 3e-3,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "bf16": False,
        "seed": 3,
        "deepspeed": ds_config(stage) if stage >= 0 else None,
    }


def curve(made: Any) -> list[tuple[float, float]]:
    """Returns loss and norm of each logged step."""
    return [(line["loss"], line["grad_norm"]) for line in made.state.log_history if "loss" in line]


def trainer(stage: int, output: str, resume: str = "", steps: int = 6) -> dict[str, Any]:
    """Trains with the transformers Trainer, a schedule and accumulation, and saves the weights."""

    args = transformers.TrainingArguments(
        **options(stage, output), gradient_accumulation_steps=2, max_steps=steps, weight_decay=0.1, warmup_steps=2, save_steps=4
    )
    made = transformers.Trainer(model=small_gpt2(), args=args, train_dataset=Texts(96))
    made.train(resume_from_checkpoint=resume or None)
    assert isinstance(made.model_wrapped, cleave.DeepSpeedEngine) == (stage >= 0), type(made.model_wrapped)
    made.save_model(os.path.join(output, "final"))
    return {"curve": curve(made), "rates": [line["learning_rate"] for line in made.state.log_history if "loss" in line]}


def pretrained(stage: int, output: str, folder: str) -> dict[str, Any]:
    """Loads a published folder with from_pretrained, which builds it sharded at stage 3, trains, and evaluates."""

    args = transformers.TrainingArguments(**options(stage, output), max_steps=3, save_strategy="no")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    sharded = sum(getattr(p, "ds_shard", None) is not None for p in model.parameters())
    made = transformers.Trainer(model=model, args=args, train_dataset=Texts(96))
    made.train()
    return {"sharded": sharded, "curve": curve(made), "evaluated": made.evaluate(Texts(8))["eval_loss"]}


def accelerated(stage: int, output: str) -> dict[str, Any]:
    """Runs accelerate's loop with a torch optimizer and scheduler, and gathers the weights at the end."""

    accelerate.state.AcceleratorState._reset_state(True)
    plugin = None
    if stage >= 0:
        micro = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0}
        plugin = accelerate.DeepSpeedPlugin(hf_ds_config={**ds_config(stage), **micro})
    accelerate.PartialState(cpu=True)  # Accelerator(cpu=True) would not use an engine
    accelerator = accelerate.Accelerator(cpu=True if plugin is None else None, gradient_accumulation_steps=2, deepspeed_plugin=plugin)
    model = small_gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 / (1 + k / accelerator.num_processes))
    loader = torch.utils.data.DataLoader(Texts(32), batch_size=2 if stage >= 0 else 4)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    assert isinstance(model, cleave.DeepSpeedEngine) == (stage >= 0), type(model)
    assert accelerator.num_processes == int(os.environ["WORLD_SIZE"]), accelerator.num_processes
    losses = []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
    state = accelerator.get_state_dict(model)
    weights = None if state is None else [v.double().abs().sum().item() for _, v in sorted(state.items())]
    return {"curve": [(loss, 0.0) for loss in losses], "weights": weights}


def low_rank(stage: int, output: str) -> dict[str, Any]:
    """Trains LoRA adapters of peft in the transformers Trainer, and saves them."""

    args = transformers.TrainingArguments(**options(stage, output), max_steps=4, save_strategy="no")
    torch.manual_seed(0)
    model = peft.get_peft_model(small_gpt2(), peft.LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True))
    made = transformers.Trainer(model=model, args=args, train_dataset=Texts(96))
    made.train()
    made.save_model(output + "/adapter")
    return {"curve": curve(made)}


def prompted(stage: int, output: str) -> dict[str, Any]:
    """Trains prompts of peft, an embedding and one with an encoder, in the transformers Trainer, and saves them from the first rank."""
    both = []
    for prompt in (
        peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
        peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=4, encoder_hidden_size=16),
    ):
        given = options(stage, output)
        if stage == 3:
            given["deepspeed"]["zero_optimization"]["stage3_param_persistence_threshold"] = 0
        args = transformers.TrainingArguments(**given, max_steps=3, save_strategy="no")
        torch.manual_seed(0)
        made = transformers.Trainer(model=peft.get_peft_model(small_gpt2(), prompt), args=args, train_dataset=Texts(96))
        made.train()
        made.save_model(f"{output}/{len(both)}")
        both.append(curve(made))
    return {"curve": both[0] + both[1]}


def supervised(stage: int, output: str) -> dict[str, Any]:
    """Trains with trl's SFT trainer."""

    args = trl.SFTConfig(**options(stage, output), max_steps=4, save_strategy="no", gradient_checkpointing=False)
    texts = Texts(96)
    rows = datasets.Dataset.from_dict({"input_ids": [texts[i]["input_ids"].tolist() for i in range(len(texts))]})
    made = trl.SFTTrainer(model=small_gpt2(), args=args, train_dataset=rows, processing_class=_tokenizer())
    made.train()
    return {"curve": curve(made)}


def preferred(stage: int, output: str) -> dict[str, Any]:
    """Trains with trl's DPO trainer and a reference model without an optimizer."""

    args = trl.DPOConfig(**options(stage, output), max_steps=3, save_strategy="no", gradient_checkpointing=False)
    rows = datasets.Dataset.from_dict(
        {
            "prompt": [f"w{i % 50} w{(i + 7) % 50} " for i in range(48)],
            "chosen": [f"w{(i + 14) % 50}" for i in range(48)],
            "rejected": [f"w{(i + 3) % 50}" for i in range(48)],
        }
    )
    made = trl.DPOTrainer(model=small_gpt2(), ref_model=small_gpt2(1), args=args, train_dataset=rows, processing_class=_tokenizer())
    made.train()
    return {"curve": curve(made)}


def rewarded(stage: int, output: str, folder: str) -> dict[str, Any]:
    """Trains with trl's reward trainer: LoRA adapters, and a copy of the score layer that peft makes of a model built sharded."""

    args = trl.RewardConfig(**options(stage, output), max_steps=3, save_strategy="no")
    rows = datasets.Dataset.from_dict({kind: [f"w{(i + k) % 50} w{k}" for i in range(48)] for kind, k in (("chosen", 14), ("rejected", 3))})
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, pad_token_id=0)
    low = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="SEQ_CLS", lora_dropout=0)
    made = trl.RewardTrainer(model=model, args=args, train_dataset=rows, processing_class=_tokenizer(), peft_config=low)
    made.train()
    return {"curve": curve(made)}


class OnHost(pytorch_lightning.accelerators.CUDAAccelerator):
    """A CPU of the CUDA accelerator class, which Lightning's strategy requires."""

    def setup_device(self, device: torch.device) -> None:
        pass

    def setup(self, trainer: Any) -> None:
        pass

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {}

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        return list(range(devices))

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device("cpu", index) for index in devices]

    @staticmethod
    def is_available() -> bool:
        return True


class Classes(pytorch_lightning.LightningModule):
    """GPT-2, built in the Lightning hook for sharded models."""

    def __init__(self) -> None:
        super().__init__()
        self.net: Any = None
        self.losses: list[tuple[float, float]] = []

    def configure_model(self) -> None:
        self.net = self.net or small_gpt2()

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        loss: torch.Tensor = self.net(**batch).loss
        self.losses.append((self.all_gather(loss.detach()).mean().item(), 0.0))
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
        self.log("evaluated", self.net(**batch).loss, sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.1)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 / (1 + k)), "interval": "step"}]


def lightning(stage: int, output: str) -> dict[str, Any]:
    """Trains with Lightning's DeepSpeed strategy: a schedule, clipping, an evaluation after 3 steps, and 2 more steps from a checkpoint."""
    sharded, samples = stage >= 0, Texts(32)
    place = int(os.environ["RANK"]) if sharded else 0
    sampler = torch.utils.data.DistributedSampler(samples, 2 if sharded else 1, place, shuffle=False)
    loaders = [torch.utils.data.DataLoader(samples, batch_size=2 if sharded else 4, sampler=s) for s in (sampler, None)]
    plain = {"accelerator": "cpu", "devices": 1}

    def fitted(steps: int, path: str | None = None) -> Any:
        engine = pytorch_lightning.strategies.DeepSpeedStrategy(stage=max(1, stage), zero_optimization=stage > 0) if sharded else None
        made = pytorch_lightning.Trainer(
            **({"accelerator": OnHost(), "devices": 2, "strategy": engine} if sharded else plain),
            max_steps=steps,
            limit_train_batches=3,
            num_sanity_val_steps=0,
            gradient_clip_val=0.5,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
        made.fit(Classes(), *loaders, ckpt_path=path)
        return made

    if not sharded:
        made = fitted(5)
        return {"curve": made.lightning_module.losses, "evaluated": made.callback_metrics["evaluated"].item()}
    made = fitted(3)
    made.save_checkpoint(output)
    resumed = fitted(5, output)
    losses = made.lightning_module.losses + resumed.lightning_module.losses
    return {"curve": losses, "evaluated": made.callback_metrics["evaluated"].item()}


def _tokenizer() -> Any:

    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2, **{f"w{k}": k + 3 for k in range(VOCABULARY - 3)}}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def publish(folder: str) -> None:
    """Saves model folders as transformers does: a language model, and in `scores` one with a score."""
    small_gpt2(4).save_pretrained(folder)
    config = transformers.AutoConfig.from_pretrained(folder, num_labels=1, pad_token_id=0)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(folder + "/scores")


def at_stages(stages: list[int], output: str, cases: dict[str, list[Any]]) -> dict[str, dict[str, Any]]:
    """Runs cases with their additional arguments at each stage in one process, because imports take seconds."""

    transformers.logging.set_verbosity_error()
    return {
        case: {str(stage): globals()[case](stage, f"{output}/{case}{stage}", *args) for stage in stages} for case, args in cases.items()
    }
