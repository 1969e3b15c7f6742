// Choices that the processes of a user share, in a file to which they append lines: checksum, name and
// choice, separated by tabs. Lines that are cut or mixed, as on network file systems, are ignored. A file
// that cannot be used is no error: each process then measures.
#pragma once
#include <map>
#include <string>

namespace cleave::kernels {

class ChoiceFile {
 public:
  // Opens or creates the file, and its folder, for this user. Not used are an empty path, a file that another
  // user owns or can write to, and one of more than 16 MiB.
  explicit ChoiceFile(const std::string& path = {});
  ~ChoiceFile();
  ChoiceFile(ChoiceFile&& other) noexcept;
  ChoiceFile& operator=(ChoiceFile&&) = delete;

  // Lines added since the last call, by this process too. The first choice of a name counts.
  std::map<std::string, std::string> read_new();
  void add(const std::string& name, const std::string& choice);

  // $XDG_CACHE_HOME/cleave/choices or ~/.cache/cleave/choices; empty if CLEAVE_CHOICES is "off".
  static std::string default_path();

 private:
  int file_ = -1;
  long long read_ = 0;  // bytes, up to the last whole line
};

}  // namespace cleave::kernels
