// Values of --data and --eval_data: one token file, or a weighted blend of several.
//
//   corpus.bin                 one file, as TokenFile reads it
//   folder, "news/*.txt"       all files in it, or with such names; a file's weight is its size
//   "a.txt b.txt c.txt"        a list with the same weights
//   "0.7 a.bin 0.3 b.bin"      alternating weights and files, as in Megatron-LM
//   @mix.txt                   a file with a line "weight path" per source; skips lines that start with #
#pragma once
#include <map>
#include <string>
#include <vector>

#include "data/batch_loader.h"
#include "data/token_file.h"

namespace cleave::data {

class DataSources {
 public:
  // Throws Error(usage) for an invalid weight, a weight without a file, and weights that Blend rejects;
  // otherwise like TokenFile. `option` is the option of this value, for messages. `texts` maps token files
  // to their source texts; errors in their tokens name the text.
  explicit DataSources(const std::string& data, const TokenFile::Options& options = {},
                       const char* option = "--data", const std::map<std::string, std::string>& texts = {});

  const std::vector<TokenFile>& files() const { return files_; }
  // For TokenBatches; valid until use_vocab().
  std::vector<TokenSource> sources() const;
  bool blended() const { return files_.size() > 1; }
  const std::vector<int64_t>& shares() const { return shares_; }

  int64_t tokens() const;
  bool bytes() const;     // every file is a text
  int64_t vocab() const;  // largest of its files
  // Reopens files with a guessed vocabulary, with the model's.
  void use_vocab(int64_t vocab);
  void note_contents();
  void require_unchanged() const;
  void check_all() const;  // like TokenFile::check_all

 private:
  std::vector<TokenFile> files_;
  std::vector<int64_t> shares_;
};

// A file and its weight.
struct DataFile {
  double weight = 1;
  std::string path;
};

// Parses the value of --data or another option; as_data() is its inverse.
std::vector<DataFile> sources_of_data(const std::string& data, const char* option = "--data");
std::string as_data(const std::vector<DataFile>& sources);

// Files of the value of --data or another option.
std::vector<std::string> files_of_data(const std::string& data, const char* option = "--data");

}  // namespace cleave::data
