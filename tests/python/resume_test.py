"""A training with random numbers that ends and resumes has the losses and batches of an uninterrupted one, bit for bit."""

import tempfile
import unittest
from typing import Any, ClassVar

import ranks

# Kind of loader, workers, ZeRO stage, and the step of the checkpoint. An epoch has 10 batches, or 5 if ranks share the data out.
CASES: list[list[Any]] = [
    ["shuffled", 0, 3, 3],
    ["shuffled", 0, 2, 10],
    ["shuffled", 2, 2, 3],
    ["shuffled", 2, 1, 14],
    ["shuffled persistent", 2, 2, 13],
    ["shuffled persistent", 2, 2, 11],
    ["shuffled persistent", 2, 2, 10],
    ["generator", 0, 1, 12],
    ["generator", 2, 2, 4],
    ["batches", 0, 2, 3],
    ["batches", 2, 2, 13],
    ["unbatched", 0, 2, 3],
    ["distributed", 0, 3, 3],
    ["distributed", 2, 2, 8],
    ["distributed", 2, 2, 5],
    ["state", 0, 2, 3],
    ["state", 0, 2, 12],
    ["stream", 0, 2, 3],
    ["stream", 2, 2, 4],
    ["own", 0, 2, 3],
    ["own", 0, 2, 12],
    ["training_data", 0, 2, 3],
    ["training_data", 0, 3, 7],
]
STEPS = 17


class Resume(unittest.TestCase):
    folder: ClassVar[str]

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())

    def test_a_resumed_training_equals_the_uninterrupted_one(self) -> None:
        for number, case in enumerate(CASES):
            folder = f"{self.folder}/{number}"
            whole = ranks.answers(2, "resume_cases", "several", folder + "/whole", [case], STEPS, False)
            begun = ranks.answers(2, "resume_cases", "several", folder + "/begun", [case], 0, False)
            resumed = ranks.answers(2, "resume_cases", "several", folder + "/begun", [case], STEPS, True)
            for rank in range(2):
                [want], [first], [rest] = whole[rank], begun[rank], resumed[rank]
                with self.subTest(case=case, rank=rank):
                    self.assertEqual(first, want[: case[3] + 1])
                    self.assertEqual(rest, want[case[3] :])
                    self.assertEqual(len({loss for loss, _ in want}), STEPS, "losses that move")

    def test_another_number_of_ranks_gets_the_remaining_samples_of_a_distributed_sampler(self) -> None:
        folder = self.folder + "/distributed"
        begun = ranks.answers(2, "resume_cases", "on_other_ranks", folder, "distributed", True)
        seen = [i for each in begun for i in each["seen"]]
        self.assertEqual(len(set(seen)), 8)
        for count in (1, 4):
            got = ranks.answers(count, "resume_cases", "on_other_ranks", folder, "distributed", False)
            rest = [i for each in got for i in each["rest"]]
            self.assertEqual(set(rest), set(range(20)) - set(seen))
            for each in got:
                self.assertEqual(each["drawn"], begun[0]["drawn"], "states that were equal on all ranks")

    def test_another_number_of_ranks_starts_the_epoch_again_if_positions_differ(self) -> None:
        folder = self.folder + "/shuffled"
        ranks.answers(2, "resume_cases", "on_other_ranks", folder, "shuffled", True)
        got = ranks.answers(1, "resume_cases", "on_other_ranks", folder, "shuffled", False)
        self.assertEqual(sorted(got[0]["rest"]), list(range(20)))
        ended = ranks.run(1, "resume_cases", "on_other_ranks", folder, "shuffled", False)
        said = "warning: {}/global_step2: the random states of torch and the position of loader loader: differ between ranks and are not"
        self.assertEqual(ended.output.count(said.format(folder)), 1, ended.output)
        self.assertIn("(2 ranks saved the checkpoint and 1 load it; random states matter only if the script draws", ended.output)

    def test_other_loaders_are_an_error(self) -> None:
        said = "register_loader: wrong loader (got list, expected a torch DataLoader, or a loader with state_dict and load_state_dict)"
        self.assertEqual(ranks.answers(1, "resume_cases", "wrong"), [said])


if __name__ == "__main__":
    unittest.main(verbosity=2)
