#include "monitor/output_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "core/error.h"
#include "core/warnings.h"
#include "core/write_error.h"

namespace cleave::monitor {

OutputFile::OutputFile(const std::string& path, Open open) : path_(path) {
  std::error_code ignored;  // the open below reports the error
  const auto folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  file_.reset(std::fopen(path.c_str(), open == Open::append ? "abe" : "wbe"));
  const int error = errno;
  require(file_ != nullptr, Exit::usage, "{}: cannot be opened for writing: {}; {}", path,
          std::strerror(error), remedy_of_writing(error));
  empty_ = std::fseek(file_.get(), 0, SEEK_END) != 0 || std::ftell(file_.get()) <= 0;
}

void OutputFile::write(std::string_view record) {
  if (refused_) return;
  refused_ = std::fwrite(record.data(), 1, record.size(), file_.get()) != record.size() ||
             std::fflush(file_.get()) != 0;
  if (refused_) warn("{}: writing failed: {}; this run adds nothing more to it", path_, std::strerror(errno));
  empty_ = empty_ && record.empty();
}

}  // namespace cleave::monitor
