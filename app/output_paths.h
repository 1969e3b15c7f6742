// The files that a command reads and those that it will write, so that no output overwrites an input or
// another output, and so that a place that cannot be written is known before the work begins.
#pragma once
#include <string>
#include <vector>

namespace cleave::app {

class OutputPaths {
 public:
  // `what` is how the user named it: "--data". An empty path is none.
  void input(const std::string& what, const std::string& path);
  void file(const std::string& what, const std::string& path);
  // `files` are names in it that the program makes, replaces and removes by its own rules: no other output
  // may be one, and whether they can be written is not tried.
  void folder(const std::string& what, const std::string& path, const std::vector<std::string>& files = {});

  // Error(usage) naming both where an output is an input or another output: by device and inode where the
  // file exists, whatever its names, and else by the folder it would be in and its name there.
  void require_distinct() const;
  // Makes missing folders, then makes and removes a file (an existing one is opened for writing and left as
  // it is). Error(usage) naming what cannot be written and what the system says.
  void require_writable() const;

 private:
  struct Named {
    std::string what, path;
    bool is_folder = false, is_of_folder = false;
  };
  std::vector<Named> inputs_, outputs_;
};

// That of a model given as a folder or a file; empty for a preset.
std::string config_file_of_model(const std::string& model);

}  // namespace cleave::app
