"""Libraries with DeepSpeed support train with the engine, unmodified, and get the results of torch alone."""

import tempfile
import unittest
from typing import Any, ClassVar

import ranks
import safetensors.torch

STAGES = [0, 1, 2, 3]


class Clients(unittest.TestCase):
    folder: ClassVar[str]
    got: ClassVar[dict[str, Any]]
    want: ClassVar[dict[str, Any]]  # torch alone, on one rank with the samples of two

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        published = cls.folder + "/published"
        ranks.answers(1, "client_cases", "publish", published)
        cases = {
            "trainer": [],
            "pretrained": [published],
            "accelerated": [],
            "low_rank": [],
            "prompted": [],
            "supervised": [],
            "preferred": [],
            "rewarded": [published + "/scores"],
            "lightning": [],
        }
        cls.want = ranks.answers(1, "client_cases", "at_stages", [-1], cls.folder, cases)[0]
        cls.got = ranks.answers(2, "client_cases", "at_stages", STAGES, cls.folder, cases)[0]

    def expect_torchs_curve(self, case: str) -> tuple[dict[str, Any], Any]:
        got, want = self.got[case], self.want[case]["-1"]
        for stage in STAGES:
            curve = got[str(stage)]["curve"]
            self.assertEqual(len(curve), len(want["curve"]))
            for step, (ours, torchs) in enumerate(zip(curve, want["curve"], strict=True)):
                for x, y in zip(ours, torchs, strict=True):
                    self.assertAlmostEqual(x, y, delta=1e-5 * max(1, abs(y)), msg=f"{case} at stage {stage}, step {step}")
        return got, want

    def test_trainer(self) -> None:
        got, want = self.expect_torchs_curve("trainer")
        for stage in STAGES:
            for rate, expected in zip(got[str(stage)]["rates"], want["rates"], strict=True):
                self.assertAlmostEqual(rate, expected, delta=1e-12)

    def test_weights_that_the_trainer_saves(self) -> None:
        files = [f"{self.folder}/trainer{stage}/final/model.safetensors" for stage in (-1, *STAGES)]
        torchs, *saved = map(safetensors.torch.load_file, files)
        for weights in saved:
            self.assertEqual(weights.keys(), torchs.keys())
            for name, value in weights.items():
                self.assertLess((value - torchs[name]).abs().max().item(), 2e-5, name)

    def test_trainer_resumes(self) -> None:
        folder = self.folder + "/trainer3"
        resumed = ranks.answers(2, "client_cases", "trainer", 3, folder, folder + "/checkpoint-4")[0]
        self.assertEqual(resumed["curve"], self.got["trainer"]["3"]["curve"], "from the checkpoint of step 4")

    def test_trainer_of_a_published_model(self) -> None:
        got, want = self.expect_torchs_curve("pretrained")
        for stage in STAGES:
            self.assertAlmostEqual(got[str(stage)]["evaluated"], want["evaluated"], delta=1e-5)
            self.assertEqual(got[str(stage)]["sharded"] > 0, stage == 3, "built sharded")

    def test_accelerate(self) -> None:
        got, want = self.expect_torchs_curve("accelerated")
        for stage in STAGES:
            for a, b in zip(got[str(stage)]["weights"], want["weights"], strict=True):
                self.assertAlmostEqual(a, b, delta=1e-5 * max(1, b))

    def test_lora_of_peft(self) -> None:
        self.expect_torchs_curve("low_rank")
        files = [f"{self.folder}/low_rank{stage}/adapter/adapter_model.safetensors" for stage in (-1, *STAGES)]
        self.assertEqual(len({frozenset(safetensors.torch.load_file(file)) for file in files}), 1)

    def test_prompts_of_peft(self) -> None:
        self.expect_torchs_curve("prompted")
        for prompt in range(2):
            files = [f"{self.folder}/prompted{stage}/{prompt}/adapter_model.safetensors" for stage in (-1, *STAGES)]
            torchs, *saved = map(safetensors.torch.load_file, files)
            for weights in saved:
                self.assertEqual(weights.keys(), torchs.keys())
                for name, value in weights.items():
                    self.assertLess((value - torchs[name]).abs().max().item(), 2e-5, name)

    def test_sft_of_trl(self) -> None:
        self.expect_torchs_curve("supervised")

    def test_dpo_of_trl(self) -> None:
        self.expect_torchs_curve("preferred")

    def test_reward_trainer_of_trl(self) -> None:
        self.expect_torchs_curve("rewarded")

    def test_strategy_of_lightning(self) -> None:
        got, want = self.expect_torchs_curve("lightning")
        for stage in STAGES:
            self.assertAlmostEqual(got[str(stage)]["evaluated"], want["evaluated"], delta=1e-5)


if __name__ == "__main__":
    unittest.main(verbosity=2)
