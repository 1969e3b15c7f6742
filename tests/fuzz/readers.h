// Readers of untrusted files, as functions of the bytes: every input is read or fails with an Error
// of the reader's exit code, in little time and memory.
#pragma once
#include <span>
#include <string>
#include <vector>

namespace cleave {

struct FuzzedReader {
  const char* name;
  // Reads the bytes and uses the result. Returns false for the reader's errors; other errors are
  // thrown or end the program.
  bool (*read)(const std::string& bytes);
  std::vector<std::string> (*seeds)();  // small valid files
};

std::span<const FuzzedReader> fuzzed_readers();
// Returns the reader with this name, which must exist.
const FuzzedReader& fuzzed_reader(const std::string& name);

}  // namespace cleave
