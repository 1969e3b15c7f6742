// Readers of files that somebody else has made, as functions of a file's bytes: whatever these are, they are
// read or refused with an Error of the reader's exit code, in little time and memory.
#pragma once
#include <span>
#include <string>
#include <vector>

namespace cleave {

struct FuzzedReader {
  const char* name;
  // Reads the bytes and uses what was read. False where they are refused; anything else that is wrong with
  // them is thrown, or ends the program.
  bool (*read)(const std::string& bytes);
  std::vector<std::string> (*seeds)();  // whole files, small
};

std::span<const FuzzedReader> fuzzed_readers();
// The one of that name, which there must be.
const FuzzedReader& fuzzed_reader(const std::string& name);

}  // namespace cleave
