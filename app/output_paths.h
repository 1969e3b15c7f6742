// Input and output files of a command. No output may overwrite an input or another output, and
// unwritable places are an error before the work begins.
#pragma once
#include <string>
#include <vector>

namespace cleave::app {

class OutputPaths {
 public:
  // Adds an input. `what` is the user's name for it, such as "--data". Empty paths are ignored.
  void input(const std::string& what, const std::string& path);
  void file(const std::string& what, const std::string& path);
  // Adds an output folder. `files` are names in it that the program manages by its own rules: other
  // outputs must not use them, and they are not tested for writing.
  void folder(const std::string& what, const std::string& path, const std::vector<std::string>& files = {});

  // Error(usage) names both paths if an output is an input or another output. Existing files are
  // compared by device and inode, others by folder and name.
  void require_distinct() const;
  // Creates missing folders, then creates and removes a file (an existing file is opened for
  // writing and left unchanged). Error(usage) names the path and the system's error.
  void require_writable() const;

 private:
  struct Named {
    std::string what, path;
    bool is_folder = false, is_of_folder = false;
  };
  std::vector<Named> inputs_, outputs_;
};

// Returns the config file of a model given as a folder or file; empty for a preset.
std::string config_file_of_model(const std::string& model);

}  // namespace cleave::app
