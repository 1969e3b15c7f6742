// What --data and --eval_data name: one token file, or a blend of several with weights.
//
//   corpus.bin                 one file, as TokenFile reads it
//   folder, "news/*.txt"       all files of it, or of such names, each with its size as its weight
//   "a.txt b.txt c.txt"        the same of a list
//   "0.7 a.bin 0.3 b.bin"      weights and files in turn, as Megatron-LM takes them
//   @mix.txt                   the same from a file: a line for each source, its weight, a blank and its
//   path;
//                              what follows a # at the beginning of a line is not read
#pragma once
#include <map>
#include <string>
#include <vector>

#include "data/batch_loader.h"
#include "data/token_file.h"

namespace cleave::data {

class DataSources {
 public:
  // Error(usage) for what is no weight or has no file, and for weights that Blend refuses; otherwise as
  // TokenFile throws.
  // `option`: what the words are the value of, for messages; `texts`: of token files that were made of a
  // text, that text, which errors in their tokens name.
  explicit DataSources(const std::string& data, const TokenFile::Options& options = {},
                       const char* option = "--data", const std::map<std::string, std::string>& texts = {});

  const std::vector<TokenFile>& files() const { return files_; }
  // For TokenBatches; valid until use_vocab().
  std::vector<TokenSource> sources() const;
  bool blended() const { return files_.size() > 1; }
  const std::vector<int64_t>& shares() const { return shares_; }

  int64_t tokens() const;
  bool bytes() const;     // every file is a text
  int64_t vocab() const;  // the largest of its files
  // Opens those whose vocabulary is a guess once more, with the model's.
  void use_vocab(int64_t vocab);
  void note_contents();
  void require_unchanged() const;
  void check_all() const;  // as TokenFile::check_all

 private:
  std::vector<TokenFile> files_;
  std::vector<int64_t> shares_;
};

// A file and its weight.
struct DataFile {
  double weight = 1;
  std::string path;
};

// What --data names, or another option; as_data() says the same in words that this reads.
std::vector<DataFile> sources_of_data(const std::string& data, const char* option = "--data");
std::string as_data(const std::vector<DataFile>& sources);

// The files that --data names, or another option.
std::vector<std::string> files_of_data(const std::string& data, const char* option = "--data");

}  // namespace cleave::data
