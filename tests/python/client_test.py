"""Libraries that know DeepSpeed train by the engine, unmodified, and come to what they come to without it."""

import tempfile
import unittest
from typing import Any

import client_cases
import ranks

STAGES = [0, 1, 2, 3]


class Clients(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def at_stages(self, case: str, *args: Any, stages: list[int] = STAGES, count: int = 2) -> dict[str, Any]:
        return ranks.answers(count, "client_cases", "at_stages", case, stages, self.folder, *args)[0]

    def assert_same_curve(self, got: Any, want: Any, what: str) -> None:
        self.assertEqual(len(got["curve"]), len(want["curve"]))
        for step, (a, b) in enumerate(zip(got["curve"], want["curve"], strict=True)):
            for x, y in zip(a, b, strict=True):
                self.assertAlmostEqual(x, y, delta=1e-5 * max(1, abs(y)), msg=f"{what}, step {step}: {got['curve']} {want['curve']}")

    def expect_torchs_curve(self, case: str, *args: Any) -> tuple[dict[str, Any], Any]:
        want = self.at_stages(case, *args, stages=[-1], count=1)["-1"]
        got = self.at_stages(case, *args)
        for stage in STAGES:
            self.assert_same_curve(got[str(stage)], want, f"{case} at stage {stage}")
        return got, want

    def test_trainer(self) -> None:
        got, want = self.expect_torchs_curve("trainer")
        for stage in STAGES:
            for rate, expected in zip(got[str(stage)]["rates"], want["rates"], strict=True):
                self.assertAlmostEqual(rate, expected, delta=1e-12)
        import safetensors.torch

        saved = [safetensors.torch.load_file(f"{self.folder}/{stage}/final/model.safetensors") for stage in (-1, *STAGES)]
        for weights in saved[1:]:
            self.assertEqual(weights.keys(), saved[0].keys())
            for name, value in weights.items():
                self.assertLess((value - saved[0][name]).abs().max().item(), 2e-5, name)
        resumed = ranks.answers(2, "client_cases", "trainer", 3, self.folder + "/3", self.folder + "/3/checkpoint-4")[0]
        self.assertEqual(resumed["curve"], got["3"]["curve"], "from the checkpoint of step 4")

    def test_trainer_of_a_published_model(self) -> None:
        published = self.folder + "/published"
        client_cases.small_gpt2(4).save_pretrained(published)
        got, want = self.expect_torchs_curve("pretrained", published)
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
        import safetensors.torch

        names = {frozenset(safetensors.torch.load_file(f"{self.folder}/{s}/adapter/adapter_model.safetensors")) for s in (-1, *STAGES)}
        self.assertEqual(len(names), 1)

    def test_sft_of_trl(self) -> None:
        self.expect_torchs_curve("supervised")

    def test_dpo_of_trl(self) -> None:
        self.expect_torchs_curve("preferred")


if __name__ == "__main__":
    unittest.main(verbosity=2)
