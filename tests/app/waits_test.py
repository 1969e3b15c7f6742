#!/usr/bin/env python3
"""docs/kernels.md lists every place where the host waits for a stream, an event or a device; this test compares the list with the code."""
import collections
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "kernels.md"
FOLDERS = ["app", "checkpoint", "comm", "device", "kernels", "model", "monitor", "offload", "optim", "pipeline", "plan", "python", "runtime",
           "tensor_parallel", "zero"]
NO_STREAMS = ["kernels/cpu", "plan/bench"]  # waits for a library's threads; measures by waiting
WAIT = re.compile(r"\bto_host<|\bcuda(Stream|Event|Device)Synchronize\(|\bcudaMemcpy\(|(\.|->)wait\(\)|(?<!void )(?<![\w:])synchronize\(\)")


def without_words(code):
    """Returns the code without comments and string literals."""
    return re.sub(r'//[^\n]*|"(\\.|[^"\\\n])*"', "", code)


def waits_of(code):
    return len(WAIT.findall(without_words(code)))


def in_code():
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = str(path.relative_to(ROOT))
            if path.suffix in {".cpp", ".h", ".cu", ".cuh"} and not any(name.startswith(f) for f in NO_STREAMS):
                found[name] = waits_of(path.read_text())
    return {name: count for name, count in found.items() if count}


def in_page(text):
    """Returns the rows of the table: `file` is one place, `file` 3 are three; a file may be in several rows."""
    section = text.split("### Where the host waits")[1].split("\n#")[0]
    found = collections.Counter()
    for row in re.findall(r"^\|.*\|$", section, re.M):
        for name, count in re.findall(r"`([\w/]+\.(?:cpp|h|cu))`(?: (\d+))?", row):
            found[name] += int(count or 1)
    return dict(found)


class Waits(unittest.TestCase):
    maxDiff = None

    def test_every_place_where_the_host_waits_is_listed_and_no_other(self):
        self.assertEqual(in_page(PAGE.read_text()), in_code())
        self.assertGreater(sum(in_code().values()), 80)

    def test_finds_each_way_to_wait_and_nothing_else(self):
        for line in ("cuda_check(cudaStreamSynchronize(s), \"x\", 0);", "cudaEventSynchronize(e);", "cudaDeviceSynchronize();",
                     "cudaMemcpy(a, b, 4, cudaMemcpyDefault);", "event.wait();", "state_->wait();", "  synchronize();",
                     "if (x) streams->comm().synchronize();", "auto v = to_host<float>(x, stream);"):
            self.assertEqual(waits_of(line), 1, line)
        for line in ("void synchronize();", "void Stream::synchronize() {", "  void synchronize() override {", "// stream.synchronize()",
                     "check(ended, \"cudaStreamSynchronize(\");", "stream.wait(event);", "cudaMemcpyAsync(a, b, 4, kind, s);",
                     "std::vector<T> to_host(const Tensor& x, Stream& stream) {", "ready_.wait(lock, [] { return done; });"):
            self.assertEqual(waits_of(line), 0, line)

    def test_reads_the_count_of_a_file_in_the_table(self):
        page = "### Where the host waits\n| a | b |\n|---|---|\n| x | `a/b.cpp` 2, `c.h` |\n| y | `a/b.cpp`: as `d` says |\n## Next\n| `e.cpp` |\n"
        self.assertEqual(in_page(page), {"a/b.cpp": 3, "c.h": 1})


if __name__ == "__main__":
    unittest.main()
