// A file that is only ever added to, whole records at a time, each handed to the system before the call
// returns: what a killed program wrote can be read.
#pragma once
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

namespace cleave::monitor {

class OutputFile {
 public:
  enum class Open { replace, append };

  // Makes missing folders. Throws Error(usage) naming the path when it cannot be opened.
  OutputFile(const std::string& path, Open open);

  // Whoever watches a training must not end it: when the system refuses, for example on a full disk, one
  // warning on stderr names the path, and nothing is written from then on.
  void write(std::string_view record);

  const std::string& path() const { return path_; }
  bool empty() const { return empty_; }  // nothing in it, from before or from here

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  bool empty_ = true, refused_ = false;
};

}  // namespace cleave::monitor
