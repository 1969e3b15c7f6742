// Common parts of fuzzed readers: files that are written again for each input.
#pragma once
#include <filesystem>
#include <fstream>
#include <string>

#include "core/error.h"
#include "core/input_file.h"
#include "tests/scratch.h"

namespace cleave {

inline std::string fixture(const std::string& name) {
  return InputFile(FIXTURES "/" + name, Exit::internal).text();
}

// Returns true if the body reads; false if it fails with the reader's error.
template <class Body>
bool reads(Exit refusal, Body&& body) {
  try {
    body();
    return true;
  } catch (const Error& error) {
    if (error.exit() != refusal) throw;
    return false;
  }
}

// A file that is written again for each input, in memory if the system has such a folder.
class ChangedFile {
 public:
  explicit ChangedFile(const std::string& name) : path_(folder().path(name)) {
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
  }
  const std::string& path() const { return path_; }
  // Creates a new file, because overwriting one may wait for a disk.
  void write(const std::string& bytes) const {
    std::filesystem::remove(path_);
    std::ofstream(path_, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
  }

 private:
  static const Scratch& folder() {
    static const Scratch scratch;
    return scratch;
  }
  std::string path_;
};

}  // namespace cleave
