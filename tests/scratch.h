// A folder of its own for a test's files, removed with what is in it, and the message of an expected error.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "core/error.h"

namespace cleave {

class Scratch {
 public:
  Scratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "cleave_test_XXXXXX").string();
    if (!::mkdtemp(pattern.data())) throw std::runtime_error("no scratch folder " + pattern);
    folder_ = pattern;
  }
  ~Scratch() { std::filesystem::remove_all(folder_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path(name), std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
    return path(name);
  }

  std::string read(const std::string& name) const {
    std::ifstream file(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::filesystem::path folder_;
};

// The message of the Error that a body throws, with this exit code; empty if it throws none.
template <class Body>
std::string error_text(Exit exit, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(int(error.exit()), int(exit)) << error.what();
    return error.what();
  }
  return "";
}

// Expects an Error with this exit code whose message contains every one of the parts.
template <class Body>
void expect_error(Exit exit, std::initializer_list<std::string_view> parts, Body&& body) {
  try {
    body();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(int(error.exit()), int(exit)) << message;
    for (std::string_view part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << part << "\nin: " << message;
  }
}

}  // namespace cleave
