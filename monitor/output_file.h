// Append-only file of whole records. Each record is passed to the system before the call returns, so the file
// of a killed program is readable.
#pragma once
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

namespace cleave::monitor {

class OutputFile {
 public:
  enum class Open { replace, append };

  // Creates missing folders. Throws Error(usage) with the path if it cannot be opened.
  OutputFile(const std::string& path, Open open);

  // Never ends the training: if a write fails, for example on a full disk, prints one warning on stderr with
  // the path, and writes nothing afterwards.
  void write(std::string_view record);

  const std::string& path() const { return path_; }
  bool empty() const { return empty_; }  // no records, neither old nor new

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  bool empty_ = true, refused_ = false;
};

}  // namespace cleave::monitor
