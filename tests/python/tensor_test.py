#!/usr/bin/env python3
"""Tensor parallelism of modules: split layers compute what whole ones do."""

from __future__ import annotations

import tempfile
import unittest

import ranks

CASES = "tensor_cases"
FAMILIES = ["guessed", "gpt_bigcode", "qwen3", "mistral", "gemma", "phi3", "phi", "gpt_neox", "opt", "bert"]
ERRORS = {
    "no layer": "tensor_parallel.autotp_size: no layer of LlamaForCausalLM matches a rule",
    "strict": "model.embed_tokens.weight: matches no rule",
    "heads": "the key/value heads of LlamaForCausalLM cannot be divided (got 2 ranks for 1)",
    "width": "outputs of model.layers.0.mlp.gate_proj cannot be divided (got 2 ranks for 49)",
    "family": "no rules for bloom models",
    "tied": "does not split a weight that is tied to model.embed_tokens",
    "embedding": "model.embed_tokens: tensor_parallel.autotp_size does not split a Embedding",
    "dim": "layer_specs[0].partition_dim: not supported for column layers (got 1, expected 0)",
    "head": "tensor_parallel.vocab_parallel_lm_head: not supported",
    "optimizer": "updates whole parameters, but a tensor-parallel rank has parts of them",
    "uncovered": "gain: its gradients differ between the ranks of a tensor-parallel group",
    "adapters": "does not support adapters of peft",
    "pipeline": "not supported for a PipelineModule",
    "sequence": "sequence_parallel_size",
    "twice": "already split for tensor parallelism by an earlier engine",
    "batches": "its inputs differ between the ranks of a tensor-parallel group",
}


class Tensor(unittest.TestCase):
    def test_losses_norms_and_weights_are_those_of_whole_modules_at_every_stage(self) -> None:
        for count in (2, 4):
            [first, *_] = ranks.answers(count, CASES, "against_torch", ["llama", "qwen2", "gpt2", "blocks"], [0, 1, 2, 3])
            self.assertEqual(len(first), 16)
            for case, far in first.items():
                self.assertLess(max(far), 1e-6, f"{case} on {count} ranks: {far}")

    def test_families_of_transformers_are_split_by_their_rules(self) -> None:
        [first, _] = ranks.answers(2, CASES, "against_torch", FAMILIES, [2])
        for case, far in first.items():
            self.assertLess(max(far), 1e-6, case)

    def test_bf16_trains_and_whole_weights_have_the_same_bits_on_the_ranks_of_a_group(self) -> None:
        for stage in (1, 3):
            given = ranks.answers(4, CASES, "in_bf16", "qwen3", stage)
            self.assertLess(abs(given[0]["losses"][0] - given[0]["first"]), 2e-2)
            self.assertLess(given[0]["losses"][-1], given[0]["losses"][0])
            for name, is_part, _ in given[0]["weights"]:
                digests = [next(digest for other, _, digest in rank["weights"] if other == name) for rank in given]
                self.assertEqual(digests[:2], digests[2:], name)
                self.assertEqual(len(set(digests)), 2 if is_part else 1, name)

    def test_dropout_of_whole_activations_is_the_same_on_the_ranks_of_a_group(self) -> None:
        for far in ranks.answers(2, CASES, "with_dropout"):
            self.assertLess(far, 1e-6)

    def test_checkpoints_resume_with_another_tensor_parallel_size_and_export_whole_weights(self) -> None:
        for name, first, then in (("qwen2", 2, 1), ("gpt2", 1, 2), ("blocks", 2, 2)):
            with tempfile.TemporaryDirectory() as folder, self.subTest(name):
                [saved, *_] = ranks.answers(2 * first // 2, CASES, "states_of", name, 2, first, folder, True)
                [loaded, *_] = ranks.answers(then, CASES, "states_of", name, 3, then, folder, False)
                self.assertEqual(loaded.pop("client"), {"a": 1})
                for key, value in (saved | loaded).items():
                    if key.startswith("names"):
                        self.assertEqual(value, [], key)
                    else:
                        self.assertLess(value, 1e-6, key)

    def test_a_rank_reads_and_writes_its_part_of_a_split_parameter(self) -> None:
        for rank, got in enumerate(ranks.answers(4, CASES, "parts")):
            place = rank % 2
            self.assertEqual((got["shape"], got["get"], got["gathered"]), ([32, 24], True, True))
            self.assertLess(got["gradient"], 1e-6)
            self.assertEqual(got["set"], [[0.0, 0.0], [1.0, 1.0]])
            self.assertEqual(got["state"], [1.0 + place] * 2)
            self.assertIn("a tensor-parallel rank has only a part of the gradients", got["grad"])
            self.assertIn("use safe_set_full", got["local"])
            self.assertIn("split for tensor parallelism, so GatheredParameters(modifier_rank=...) cannot change it", got["modified"])
            self.assertEqual(got["groups"], [place, 2, rank // 2, 2, 2, 2, rank - place])

    def test_settings_and_kinds_of_training_give_what_whole_modules_give(self) -> None:
        [first, _] = ranks.answers(2, CASES, "variants")
        for kind, far in first.items():
            self.assertLess(far, 1e-3 if kind == "autocast" else 1e-6, kind)

    def test_the_trainer_of_transformers_trains_and_saves_split_modules(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            [whole] = ranks.answers(1, CASES, "with_trainer", 1, f"{folder}/whole")
            [split, _] = ranks.answers(2, CASES, "with_trainer", 2, f"{folder}/split")
        for got, want in zip(split["seen"], whole["seen"], strict=True):
            for a, b in zip(got, want, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-4)
        for name, sums in whole["weights"].items():
            for a, b in zip(split["weights"][name], sums, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-3, msg=name)

    def test_the_plan_has_the_bytes_of_the_parts(self) -> None:
        given = ranks.answers(4, CASES, "planned")
        self.assertIn("note: tensor 2 x data 2: 4 layers of GPT2LMHeadModel split by columns, 4 by rows\n", given[0]["said"])
        self.assertIn("warning: tensor_parallel.sequence_parallel: has no effect for PyTorch modules", given[0]["said"])
        for got in given:
            self.assertEqual(got["plan"], got["engine"])
            self.assertTrue(got["layout"])
            self.assertLess(got["weights"][0], 0.6 * got["weights"][1])
            self.assertIn("trace: not supported with tensor parallelism", got["trace"])

    def test_tp_model_init_sets_size_and_type_and_the_loader_gives_a_group_the_same_samples(self) -> None:
        given = ranks.answers(4, CASES, "init_and_loader")
        for one in given:
            self.assertEqual((one["dtype"], one["size"]), ("torch.bfloat16", [8, 2, 2]))
            self.assertIn("differs from an earlier call", one["other"])
        self.assertEqual(given[0]["read"], given[1]["read"])
        self.assertEqual(given[2]["read"], given[3]["read"])
        self.assertEqual(sorted(i for rank in (0, 2) for batch in given[rank]["read"] for i in batch), list(range(1, 17)))

    def test_a_fused_layer_without_its_shape_is_an_error_after_the_first_forward(self) -> None:
        for got in ranks.answers(2, CASES, "fused"):
            self.assertEqual(len(got), 12)
            for case, (said, keeps) in got.items():
                wrong = case.endswith("False")
                self.assertTrue(keeps, f"{case}: the check takes random numbers")
                self.assertIn("blocks.0: its outputs differ if its layers are split by" if wrong else "nothing", said, case)

    def test_errors_name_the_key_or_the_layer(self) -> None:
        for got in ranks.answers(2, CASES, "errors"):
            self.assertEqual(got.keys(), ERRORS.keys())
            for kind, message in ERRORS.items():
                self.assertIn(message, got[kind])


if __name__ == "__main__":
    unittest.main(verbosity=2)
